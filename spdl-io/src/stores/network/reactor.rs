//! The network thread. Futures of any executor wait for its I/O.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_channel::oneshot;
use futures_core::Stream;
use spdl_core::{BoxFuture, Error, ErrorKind, Result, Runtime};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinHandle};

use crate::fetch::{HeldConnection, Key, RequestTimes};
use crate::files::open_files;

/// A single-threaded tokio runtime for sockets and timers. Cheap to clone.
///
/// The first use starts the thread. Dropping the last handle ends it.
#[derive(Clone, Default)]
pub(crate) struct Reactor(Arc<Mutex<Option<NetworkThread>>>);

struct NetworkThread {
    handle: Handle,
    /// Dropping the sender ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Reactor {
    /// Runs a call on the network thread and returns its result. Errors name the key.
    ///
    /// The waiting task is woken once. Dropping the future cancels the call.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        key: &Key,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let answer = match self.handle() {
            Ok(handle) => {
                let mut task = Task(handle.spawn(call));
                (&mut task.0).await.unwrap_or_else(|error| Err(join_error(error)))
            }
            Err(error) => Err(error),
        };
        answer.map_err(|error| error.with_key(key.display_name()))
    }

    /// Creates a future or stream that needs tokio, and wraps it so that any executor can poll it.
    ///
    /// # Errors
    /// `Io` if the system cannot start a thread, or `Unavailable` if too many files are open.
    pub(crate) fn in_tokio_context<T>(&self, make: impl FnOnce() -> T) -> Result<TokioContext<T>> {
        let handle = self.handle()?;
        let inner = {
            let _within = handle.enter();
            make()
        };
        Ok(TokioContext { inner: Some(Box::pin(inner)), handle, _reactor: self.clone() })
    }

    /// Returns a [`Runtime`] whose tasks run on the network thread.
    ///
    /// # Errors
    /// `Io` if the system cannot start a thread, or `Unavailable` if too many files are open.
    pub(crate) fn runtime(&self) -> Result<ReactorRuntime> {
        Ok(ReactorRuntime { handle: self.handle()?, _reactor: self.clone() })
    }

    fn handle(&self) -> Result<Handle> {
        let mut started = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(started) = &*started {
            return Ok(started.handle.clone());
        }
        let new = NetworkThread::new().map_err(|error| {
            let message = "cannot start the network thread";
            let is_transient = open_files::is_too_many_open_files(&error);
            let kind = if is_transient { ErrorKind::Unavailable } else { ErrorKind::Io };
            Error::new(kind, message).with_source(error)
        })?;
        Ok(started.insert(new).handle.clone())
    }
}

/// A call on the network thread, which is cancelled on drop.
struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn join_error(error: JoinError) -> Error {
    let Ok(panic) = error.try_into_panic() else {
        return Error::new(ErrorKind::Stopped, "the store was closed");
    };
    panicked(&*panic)
}

/// Converts the panic of a call to a store into an error.
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

impl NetworkThread {
    fn new() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("spdl-network".into()).spawn(move || {
            // The channel reports an error if the sender is dropped, which is the stop signal.
            let _ = runtime.block_on(stopped);
            // Does not wait for a name lookup in progress.
            runtime.shutdown_background();
        })?;
        Ok(NetworkThread { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for NetworkThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        let thread = self.thread.take();
        // The network thread itself may drop the last handle.
        if let Some(thread) = thread.filter(|it| it.thread().id() != thread::current().id()) {
            // The thread owns no state that a panic could corrupt.
            let _ = thread.join();
        }
    }
}

/// Runs tasks on the network thread, and keeps the thread alive.
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

/// A future or stream that enters the tokio context whenever it is polled or dropped.
pub(crate) struct TokioContext<T> {
    inner: Option<Pin<Box<T>>>,
    handle: Handle,
    /// Keeps the thread alive.
    _reactor: Reactor,
}

impl<T: Future> Future for TokioContext<T> {
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

impl<T: Stream> Stream for TokioContext<T> {
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

impl<T> Drop for TokioContext<T> {
    fn drop(&mut self) {
        // Returning a connection to its pool may spawn a tokio task.
        let _within = self.handle.enter();
        drop(self.inner.take());
    }
}

/// Limits the number of concurrent requests to one store.
#[derive(Clone, Debug)]
pub(crate) struct Connections(Arc<Semaphore>);

impl Connections {
    pub(crate) fn new(limit: usize) -> Self {
        Connections(Arc::new(Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Waits for a connection, which the caller holds until the response has been read.
    ///
    /// `times` stores when the request can be sent.
    pub(crate) async fn take(&self, times: Option<&RequestTimes>) -> Result<Arc<Connection>> {
        let permit = match Arc::clone(&self.0).try_acquire_owned() {
            Ok(permit) => Ok(permit),
            Err(_) => {
                times.inspect(|times| times.mark_waiting());
                let permit = Arc::clone(&self.0).acquire_owned().await;
                times.inspect(|times| times.mark_sent(Instant::now()));
                permit
            }
        };
        let permit = permit.map_err(|_| Error::new(ErrorKind::Stopped, "the store was closed"))?;
        let connections = Arc::clone(&self.0);
        Ok(Arc::new(Connection { connections, permit: Mutex::new(Some(permit)) }))
    }
}

/// One of the [`Connections`].
pub(crate) struct Connection {
    connections: Arc<Semaphore>,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Connection {
    fn permit(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl HeldConnection for Connection {
    fn release(&self) {
        *self.permit() = None;
    }

    async fn take_again(&self) {
        let permit = Arc::clone(&self.connections).acquire_owned().await;
        // The semaphore is never closed.
        *self.permit() = permit.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spdl_core::block_on;

    #[test]
    fn the_thread_starts_lazily_and_ends_with_the_last_handle() {
        let reactor = Reactor::default();
        assert!(reactor.0.lock().unwrap().is_none());
        let wait = || tokio::time::sleep(Duration::from_millis(1));
        block_on(reactor.in_tokio_context(wait).unwrap());
        let waiting = reactor.in_tokio_context(wait).unwrap();
        let started = Arc::downgrade(&reactor.0);
        drop(reactor);
        block_on(waiting);
        assert!(started.upgrade().is_none(), "the thread outlives its handles");
    }

    #[test]
    fn calls_run_on_the_thread_and_errors_name_the_key() {
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
    fn the_runtime_runs_tasks_on_the_thread() {
        let runtime = std::sync::Arc::new(Reactor::default().runtime().unwrap());
        let (send, received) = std::sync::mpsc::channel();
        let nap = runtime.sleep(Duration::from_millis(1));
        runtime.spawn(Box::pin(async move {
            nap.await;
            let _ = send.send(thread::current().name().map(str::to_owned));
        }));
        assert_eq!(received.recv().unwrap().as_deref(), Some("spdl-network"));
        let join_error = Arc::downgrade(&runtime._reactor.0);
        drop(runtime);
        assert!(join_error.upgrade().is_none(), "the thread outlives its runtime");
    }

    #[test]
    fn dropping_the_future_cancels_the_call() {
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
        assert!(ends.recv().is_err(), "the call is still running");
    }

    #[test]
    fn concurrent_requests_are_limited() {
        let connections = Connections::new(2);
        let first = block_on(connections.take(None)).unwrap();
        let _second = block_on(connections.take(None)).unwrap();
        let mut third = Box::pin(connections.take(None));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert!(third.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(third.as_mut().poll(&mut cx).is_ready());
    }
}
