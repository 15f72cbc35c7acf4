//! A third-party S3 server (`s3s`) in this process.

use std::path::Path;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// A server that runs until it is dropped.
pub(crate) struct S3Server {
    pub(crate) url: String,
    runtime: Option<Runtime>,
}

impl S3Server {
    /// Serves the folders in `root` as buckets. Requests must be signed with this key.
    pub(crate) fn start(root: &Path, access_key: &str, secret_key: &str) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root).unwrap());
        builder.set_auth(SimpleAuth::from_single(access_key, secret_key));
        let service = builder.build();
        runtime.spawn(async move {
            loop {
                let Ok((socket, _)) = listener.accept().await else { return };
                let service = service.clone();
                tokio::spawn(async move {
                    let server = auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        S3Server { url, runtime: Some(runtime) }
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
