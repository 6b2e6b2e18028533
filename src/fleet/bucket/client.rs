//! The HTTP that the store is asked over: the TLS that all of the program has, no redirects, bounds on time.
//!
//! What is asked is answered within [`ANSWER_TIMEOUT`], and what comes then comes without a longer pause. Where bytes go along,
//! the time to send them at [`SLOWEST_LINK`] is added: the answer comes after the last of them. So a segment gets through however
//! slow the way is, down to that. The whole of an operation is bounded by who asks.

use std::time::Duration;

use futures_util::future::BoxFuture;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use rustls::ClientConfig;

use crate::io::tls::{provider, system_roots};

/// Most time to connect, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most time without a byte of an answer, once what is asked has been sent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes in a second of the slowest way to a store that is waited for: 256 kbit/s.
const SLOWEST_LINK: u64 = 32 << 10;
/// Most time in which nothing of what was sent arrives, before the connection is given up.
#[cfg(target_os = "linux")]
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections that are kept open, of those that bytes are sent over and of the others.
const MAX_IDLE: usize = 4;
/// For how long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long so many bytes take at most, on their way to a store or from it.
pub(super) fn transfer_time(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / SLOWEST_LINK)
}

/// Makes the connections to the store.
#[derive(Clone, Debug)]
pub(super) struct OwnClient {
    /// For what is asked without a body.
    reads: reqwest::Client,
    /// For what is sent: the library's bound on the time without a byte of an answer runs while bytes are sent.
    writes: reqwest::Client,
}

impl OwnClient {
    /// Reads the system's certificates.
    ///
    /// # Errors
    ///
    /// The library's, where it cannot be set up.
    pub(super) fn new() -> Result<Self, String> {
        let tls = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(system_roots())
            .with_no_client_auth();
        let builder = || {
            let builder = reqwest::Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
                .pool_max_idle_per_host(MAX_IDLE)
                .pool_idle_timeout(IDLE_TIMEOUT);
            #[cfg(target_os = "linux")]
            let builder = builder.tcp_user_timeout(STALL_TIMEOUT);
            builder
        };
        let reads = builder().read_timeout(ANSWER_TIMEOUT).build();
        let reads = reads.map_err(|error| error.to_string())?;
        let writes = builder().build().map_err(|error| error.to_string())?;
        Ok(Self { reads, writes })
    }
}

impl HttpService for OwnClient {
    fn call<'own, 'call>(
        &'own self,
        request: HttpRequest,
    ) -> BoxFuture<'call, Result<HttpResponse, HttpError>>
    where
        'own: 'call,
        Self: 'call,
    {
        let bytes = request.body().content_length() as u64;
        if bytes == 0 {
            return self.reads.call(request);
        }
        let answered =
            tokio::time::timeout(ANSWER_TIMEOUT + transfer_time(bytes), self.writes.call(request));
        Box::pin(async {
            answered.await.unwrap_or_else(|late| Err(HttpError::new(HttpErrorKind::Timeout, late)))
        })
    }
}

impl HttpConnector for OwnClient {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}
