//! The proxy that runs already: at the config's address, or at the one written in its data folder.
//!
//! `serve` may listen elsewhere than the config says (`--listen`, or a port of the system's
//! choice). So it writes its address into its data folder for as long as it runs. A file that a
//! killed server left behind does no harm: whoever listens there has to prove who it is.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::http_client::{HttpClient, Security};
use crate::config::Config;
use crate::io::address::Address;
use crate::os::private;

const FILE: &str = "address";

/// The file with the address of this server, for commands to find; removed when dropped.
#[derive(Debug)]
pub(super) struct Announced(PathBuf);

impl Announced {
    /// Writes the file. A server works without it, so a failure is only logged.
    pub(super) fn at(data_dir: &Path, address: &Address) -> Option<Self> {
        let file = data_dir.join(FILE);
        match private::create(&file).and_then(|mut opened| writeln!(opened, "{address}")) {
            Ok(()) => Some(Self(file)),
            Err(error) => {
                tracing::warn!("{}: {error}", file.display());
                None
            }
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // A stale file is harmless: a listener has to prove its identity in any case.
        let _ = fs::remove_file(&self.0);
    }
}

/// Where the config says that a proxy listens.
pub(super) fn configured(config: &Config) -> HttpClient {
    HttpClient::new(config.listen.clone(), security(config), config.key())
}

/// Whether a proxy of this config speaks TLS. It is the same wherever it listens.
fn security(config: &Config) -> Security {
    match config.tls {
        Some(_) => Security::Tls,
        None => Security::Plain,
    }
}

/// The proxy to talk to: the one where the config says, else the one elsewhere. A stranger where
/// the config says is told of by the first request, which does not reach it.
pub(super) async fn find(config: &Config) -> Option<HttpClient> {
    let client = configured(config);
    if !client.is_there().await {
        return elsewhere(config).await;
    }
    if !client.is_mcpproxy().await
        && let Some(other) = elsewhere(config).await
    {
        return Some(other);
    }
    Some(client)
}

/// The proxy that has written where it listens into this data folder, asked with that key. Without a config nobody knows
/// whether it speaks TLS: both are tried.
pub(super) async fn announced(data_dir: &Path, key: &str) -> Option<HttpClient> {
    let text = fs::read_to_string(data_dir.join(FILE)).ok()?;
    let address = Address::parse(text.trim())?;
    for security in [Security::Plain, Security::Tls] {
        let client = HttpClient::new(address.clone(), security, key);
        if client.is_mcpproxy().await {
            return Some(client);
        }
    }
    None
}

/// The proxy that owns the data folder, if it runs and listens elsewhere.
pub(super) async fn elsewhere(config: &Config) -> Option<HttpClient> {
    let text = fs::read_to_string(config.data_dir.join(FILE)).ok()?;
    let listen = Address::parse(text.trim()).filter(|listen| *listen != config.listen)?;
    let client = HttpClient::new(listen, security(config), config.key());
    client.is_mcpproxy().await.then_some(client)
}
