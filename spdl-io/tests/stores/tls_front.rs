//! TLS in front of a plain server, that ends connections where it must not.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use spdl_io::testing::FaultServer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// After so many bytes of an answer it is cut.
const IN_BODY: usize = 7_000;

/// It vouches for the server below, until the year 2100. Its key is no more.
pub(crate) const AUTHORITY: &[u8] = include_bytes!("tls_files/authority.pem");
/// A certificate for `localhost` and 127.0.0.1, and its key, which protects nothing.
const SERVER: [&[u8]; 2] =
    [include_bytes!("tls_files/server.pem"), include_bytes!("tls_files/server.key")];

/// Where a connection ends, without the word of farewell (`close_notify`) that TLS asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cut {
    /// In the middle of the handshake.
    Handshake,
    /// When a request has come, before the first byte of its answer.
    BeforeAnswer,
    /// In the middle of a body.
    InBody,
}

pub(crate) const CUTS: [Cut; 3] = [Cut::Handshake, Cut::BeforeAnswer, Cut::InBody];

/// Which connections and answers are cut: a share of them, drawn from the seed and their number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) cut: Cut,
    pub(crate) share: f64,
    pub(crate) seed: u64,
}

/// TLS in front of a plain server, that ends connections by a plan.
pub(crate) struct TlsFront {
    address: SocketAddr,
    shared: Arc<Shared>,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Default)]
struct Shared {
    plan: Mutex<Option<Plan>>,
    drawn: AtomicU64,
    cuts: AtomicU64,
}

impl Shared {
    /// Whether this one is to end so now.
    fn draw(&self, cut: Cut) -> bool {
        let Some(plan) = self.plan.lock().unwrap().filter(|plan| plan.cut == cut) else {
            return false;
        };
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        // The finish of SplitMix64 mixes well enough.
        let mut bits = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ plan.seed;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let is_cut = ((bits >> 11) as f64 / (1_u64 << 53) as f64) < plan.share;
        self.cuts.fetch_add(u64::from(is_cut), Ordering::Relaxed);
        is_cut
    }
}

impl TlsFront {
    pub(crate) fn start(behind: &FaultServer) -> Self {
        let behind: SocketAddr = behind.url().strip_prefix("http://").unwrap().parse().unwrap();
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
        let shared = Arc::new(Shared::default());
        let served = Arc::clone(&shared);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, shared) = (acceptor.clone(), Arc::clone(&served));
                tokio::spawn(async move {
                    // What ends a connection is for the client to tell.
                    let _ = serve(stream, acceptor, behind, &shared).await;
                });
            }
        });
        TlsFront { address, shared, _runtime: runtime }
    }

    /// Where it is: `https://localhost:port`.
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
    behind: SocketAddr,
    shared: &Shared,
) -> io::Result<()> {
    if shared.draw(Cut::Handshake) {
        // A part of the client's greeting is read, and never answered.
        stream.read_exact(&mut [0; 100]).await?;
        return Ok(());
    }
    let client = acceptor.accept(stream).await?;
    let server = TcpStream::connect(behind).await?;
    // Dropped, neither side says farewell.
    carry(client, server, shared).await
}

/// Carries bytes in both directions until one side ends, or an answer is to be cut.
async fn carry(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut server: TcpStream,
    shared: &Shared,
) -> io::Result<()> {
    let (mut asked, mut answered) = (vec![0; 16 << 10], vec![0; 16 << 10]);
    // Of the answer under way, so many bytes may still pass.
    let mut left = usize::MAX;
    loop {
        tokio::select! {
            count = client.read(&mut asked) => {
                // A client sends a request in one piece, and the next one after the answer.
                let count = count?;
                if count == 0 || shared.draw(Cut::BeforeAnswer) {
                    return Ok(());
                }
                left = if shared.draw(Cut::InBody) { IN_BODY } else { usize::MAX };
                server.write_all(&asked[..count]).await?;
            }
            count = server.read(&mut answered) => {
                let count = count?;
                let passed = count.min(left);
                client.write_all(&answered[..passed]).await?;
                client.flush().await?;
                left -= passed;
                if count == 0 || left == 0 {
                    return Ok(());
                }
            }
        }
    }
}
