//! The thread that waits for the network, so that any executor may poll what waits for it.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use futures_channel::oneshot;
use futures_core::Stream;
use spdl_core::{BoxFuture, Error, ErrorKind, Result, Runtime};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinHandle};

use crate::fetch::Key;
use crate::files::open_files;

/// One thread that moves bytes between sockets and whoever reads; started by the first read, ended
/// with the last handle. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Reactor(Arc<Mutex<Option<Started>>>);

struct Started {
    handle: Handle,
    /// Dropped, it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Reactor {
    /// Runs a call on the thread: whoever waits for it is woken once, by its answer. Its error names the
    /// key. Dropped, it ends the call.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        key: &Key,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let answer = match self.handle() {
            Ok(handle) => {
                let mut task = Task(handle.spawn(call));
                (&mut task.0).await.unwrap_or_else(|error| Err(ended(error)))
            }
            Err(error) => Err(error),
        };
        answer.map_err(|error| error.with_key(key.display_name()))
    }

    /// What can only be polled where tokio is, made so that it can be polled anywhere.
    ///
    /// # Errors
    /// `Io` where the system refuses a thread.
    pub(crate) fn within<T>(&self, make: impl FnOnce() -> T) -> Result<Within<T>> {
        let handle = self.handle()?;
        let inner = {
            let _within = handle.enter();
            make()
        };
        Ok(Within { inner: Some(Box::pin(inner)), handle, _reactor: self.clone() })
    }

    /// An executor whose tasks run on the thread: what they read needs no other one to be woken.
    ///
    /// # Errors
    /// `Io` where the system refuses a thread.
    pub(crate) fn runtime(&self) -> Result<ReactorRuntime> {
        Ok(ReactorRuntime { handle: self.handle()?, _reactor: self.clone() })
    }

    fn handle(&self) -> Result<Handle> {
        let mut started = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(started) = &*started {
            return Ok(started.handle.clone());
        }
        let new = Started::new().map_err(|error| {
            let message = "cannot start the thread that waits for the network";
            let is_passing = open_files::are_too_many(&error);
            let kind = if is_passing { ErrorKind::Unavailable } else { ErrorKind::Io };
            Error::new(kind, message).with_source(error)
        })?;
        Ok(started.insert(new).handle.clone())
    }
}

/// A call on the thread, which nobody needs without whoever waits for it.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn ended(error: JoinError) -> Error {
    let Ok(panic) = error.try_into_panic() else {
        return Error::new(ErrorKind::Stopped, "the store was closed");
    };
    panicked(&*panic)
}

/// What a call to a store panicked with.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Error::new(ErrorKind::Panicked, format!("a call to a store panicked: {text}"))
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reactor")
    }
}

impl Started {
    fn new() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("spdl-network".into()).spawn(move || {
            // An error says that the other side is gone, which is what is waited for.
            let _ = runtime.block_on(stopped);
            // Whoever still looks a name up is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Started { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        drop(self.stop.take());
        let thread = self.thread.take();
        // The last handle may be let go by the thread itself.
        if let Some(thread) = thread.filter(|it| it.thread().id() != thread::current().id()) {
            // It holds nothing that a panic could have left behind.
            let _ = thread.join();
        }
    }
}

/// Runs tasks on the thread, which lives as long as this does.
#[derive(Debug)]
pub(crate) struct ReactorRuntime {
    handle: Handle,
    _reactor: Reactor,
}

impl Runtime for ReactorRuntime {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        drop(self.handle.spawn(task));
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let _within = self.handle.enter();
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A future or a stream that finds tokio around it wherever it is polled, and dropped.
pub(crate) struct Within<T> {
    inner: Option<Pin<Box<T>>>,
    handle: Handle,
    /// The thread lives as long as anybody waits for it.
    _reactor: Reactor,
}

impl<T: Future> Future for Within<T> {
    type Output = T::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        let this = &mut *self;
        let _within = this.handle.enter();
        match &mut this.inner {
            Some(inner) => inner.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<T: Stream> Stream for Within<T> {
    type Item = T::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T::Item>> {
        let this = &mut *self;
        let _within = this.handle.enter();
        match &mut this.inner {
            Some(inner) => inner.as_mut().poll_next(cx),
            None => Poll::Ready(None),
        }
    }
}

impl<T> Drop for Within<T> {
    fn drop(&mut self) {
        // A connection that goes back to its pool may start a task there.
        let _within = self.handle.enter();
        drop(self.inner.take());
    }
}

/// How many requests to one store may be under way.
#[derive(Clone, Debug)]
pub(crate) struct Connections(Arc<Semaphore>);

impl Connections {
    pub(crate) fn new(most: usize) -> Self {
        Connections(Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Waits for its turn; to be held until the answer has been read.
    pub(crate) async fn take(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.0).acquire_owned().await;
        permit.map_err(|_| Error::new(ErrorKind::Stopped, "the store was closed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spdl_core::block_on;

    #[test]
    fn no_thread_is_started_before_it_is_needed_and_it_ends_with_the_last_handle() {
        let reactor = Reactor::default();
        assert!(reactor.0.lock().unwrap().is_none());
        let wait = || tokio::time::sleep(Duration::from_millis(1));
        block_on(reactor.within(wait).unwrap());
        let waiting = reactor.within(wait).unwrap();
        let started = Arc::downgrade(&reactor.0);
        drop(reactor);
        block_on(waiting);
        assert!(started.upgrade().is_none(), "the thread outlives its handles");
    }

    #[test]
    fn a_call_runs_on_the_thread_and_names_its_key() {
        let (reactor, key) = (Reactor::default(), Key::from("the key"));
        let name = || Ok(thread::current().name().map(str::to_owned));
        let name = block_on(reactor.run(&key, async move { name() })).unwrap();
        assert_eq!(name.as_deref(), Some("spdl-network"));
        let failing = async { Err::<(), _>(Error::new(ErrorKind::Corrupt, "bad")) };
        let error = block_on(reactor.run(&key, failing)).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some("the key")));
        let error = block_on(reactor.run::<()>(&key, async { panic!("on purpose") })).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert!(error.message().contains("on purpose"), "{error}");
    }

    #[test]
    fn a_runtime_of_it_keeps_the_thread_and_runs_there() {
        let runtime = std::sync::Arc::new(Reactor::default().runtime().unwrap());
        let (send, received) = std::sync::mpsc::channel();
        let nap = runtime.sleep(Duration::from_millis(1));
        runtime.spawn(Box::pin(async move {
            nap.await;
            let _ = send.send(thread::current().name().map(str::to_owned));
        }));
        assert_eq!(received.recv().unwrap().as_deref(), Some("spdl-network"));
        let ended = Arc::downgrade(&runtime._reactor.0);
        drop(runtime);
        assert!(ended.upgrade().is_none(), "nobody holds it any more");
    }

    #[test]
    fn a_call_that_nobody_waits_for_any_more_ends() {
        let (reactor, key) = (Reactor::default(), Key::from("the key"));
        let (begun, begins) = std::sync::mpsc::channel();
        let (held, ends) = std::sync::mpsc::channel::<()>();
        let mut call = Box::pin(reactor.run(&key, async move {
            let _held = held;
            let _ = begun.send(());
            std::future::pending::<Result<()>>().await
        }));
        assert!(
            call.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_pending()
        );
        begins.recv().unwrap();
        drop(call);
        assert!(ends.recv().is_err(), "what it held is dropped");
    }

    #[test]
    fn so_many_requests_are_under_way_and_no_more() {
        let connections = Connections::new(2);
        let first = block_on(connections.take()).unwrap();
        let _second = block_on(connections.take()).unwrap();
        let mut third = Box::pin(connections.take());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(third.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(third.as_mut().poll(&mut cx).is_ready());
    }
}
