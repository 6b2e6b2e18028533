//! The HTTP that the store is asked over: the TLS that all of the program has, no redirects, bounds on time.

use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector};
use rustls::ClientConfig;

use crate::io::tls::{provider, system_roots};

/// Most time to connect, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Most time for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Most time without a byte of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that are kept open.
const MAX_IDLE: usize = 4;
/// For how long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes the connections to the store.
#[derive(Debug)]
pub(super) struct OwnClient(reqwest::Client);

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
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self(client))
    }
}

impl HttpConnector for OwnClient {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}
