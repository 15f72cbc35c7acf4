//! A TLS proxy for a plain server that closes connections without `close_notify`.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use spdl_io::testing::FaultServer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Number of bytes of a response after which it is truncated.
const TRUNCATE_AFTER: usize = 7_000;

/// The authority of the server certificate, valid until the year 2100. Its key was deleted.
pub(crate) const AUTHORITY: &[u8] = include_bytes!("tls_files/authority.pem");
/// A certificate for `localhost` and 127.0.0.1, and its private key for tests.
const SERVER: [&[u8]; 2] =
    [include_bytes!("tls_files/server.pem"), include_bytes!("tls_files/server.key")];

/// The point at which a connection is closed without `close_notify`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cut {
    /// During the handshake.
    Handshake,
    /// After a request, before the first byte of its response.
    BeforeResponse,
    /// Within a body.
    InBody,
}

pub(crate) const CUTS: [Cut; 3] = [Cut::Handshake, Cut::BeforeResponse, Cut::InBody];

/// Which connections and responses are truncated: a pseudo-random share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) cut: Cut,
    pub(crate) share: f64,
    pub(crate) seed: u64,
}

/// The proxy, which closes connections by a plan.
pub(crate) struct TlsFront {
    address: SocketAddr,
    shared: Arc<TlsFrontState>,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Default)]
struct TlsFrontState {
    plan: Mutex<Option<Plan>>,
    drawn: AtomicU64,
    cuts: AtomicU64,
}

impl TlsFrontState {
    /// Draws whether to close a connection at this point.
    fn draw(&self, cut: Cut) -> bool {
        let Some(plan) = self.plan.lock().unwrap().filter(|plan| plan.cut == cut) else {
            return false;
        };
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        // The finalizer of SplitMix64.
        let mut bits = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ plan.seed;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let is_cut = ((bits >> 11) as f64 / (1_u64 << 53) as f64) < plan.share;
        self.cuts.fetch_add(u64::from(is_cut), Ordering::Relaxed);
        is_cut
    }
}

impl TlsFront {
    pub(crate) fn start(upstream: &FaultServer) -> Self {
        let upstream: SocketAddr = upstream.url().strip_prefix("http://").unwrap().parse().unwrap();
        let chain = vec![CertificateDer::from_pem_slice(SERVER[0]).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(SERVER[1]).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_io()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(TlsFrontState::default());
        let served = Arc::clone(&shared);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, shared) = (acceptor.clone(), Arc::clone(&served));
                tokio::spawn(async move {
                    // The client reports connection errors.
                    let _ = serve(stream, acceptor, upstream, &shared).await;
                });
            }
        });
        TlsFront { address, shared, _runtime: runtime }
    }

    /// Returns the URL: `https://localhost:port`.
    pub(crate) fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    pub(crate) fn set_plan(&self, plan: Plan) {
        *self.shared.plan.lock().unwrap() = Some(plan);
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

async fn serve(
    mut stream: TcpStream,
    acceptor: TlsAcceptor,
    upstream: SocketAddr,
    shared: &TlsFrontState,
) -> io::Result<()> {
    if shared.draw(Cut::Handshake) {
        // Reads part of the ClientHello and closes the connection.
        stream.read_exact(&mut [0; 100]).await?;
        return Ok(());
    }
    let client = acceptor.accept(stream).await?;
    let server = TcpStream::connect(upstream).await?;
    // Dropping the connections sends no `close_notify`.
    forward(client, server, shared).await
}

/// Forwards bytes in both directions until one side closes, or a response is to be truncated.
async fn forward(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut server: TcpStream,
    shared: &TlsFrontState,
) -> io::Result<()> {
    let (mut request, mut response) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    // Number of bytes of the current response that are still forwarded.
    let mut remaining = usize::MAX;
    loop {
        tokio::select! {
            count = client.read(&mut request) => {
                                // A client sends a request in one write, and the next one after the
                                // response.
                let count = count?;
                if count == 0 || shared.draw(Cut::BeforeResponse) {
                    return Ok(());
                }
                remaining = if shared.draw(Cut::InBody) { TRUNCATE_AFTER } else { usize::MAX };
                server.write_all(&request[..count]).await?;
            }
            count = server.read(&mut response) => {
                let count = count?;
                let passed = count.min(remaining);
                client.write_all(&response[..passed]).await?;
                client.flush().await?;
                remaining -= passed;
                if count == 0 || remaining == 0 {
                    return Ok(());
                }
            }
        }
    }
}
