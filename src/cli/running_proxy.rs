//! The proxy that runs already: at the config's address, or at the one written in its data folder.
//!
//! `serve` may listen elsewhere than the config says (`--listen`, or a port of the system's
//! choice). So it writes its address into its data folder for as long as it runs, and its process id
//! behind it. A file that a killed server left behind does no harm: whoever listens there has to prove
//! who it is.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::sys::signal::kill;
use nix::unistd::Pid;

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
        let written = private::create(&file)
            .and_then(|mut opened| writeln!(opened, "{address}\n{}", std::process::id()));
        match written {
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
    let (address, _) = read(data_dir)?;
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
    let (listen, _) = read(&config.data_dir).filter(|(listen, _)| *listen != config.listen)?;
    let client = HttpClient::new(listen, security(config), config.key());
    client.is_mcpproxy().await.then_some(client)
}

/// The process that has written that it listens where the config says, if there is one of that id.
pub(super) fn announced_process(config: &Config) -> Option<Pid> {
    let (_, process) = read(&config.data_dir).filter(|(listen, _)| *listen == config.listen)?;
    process.filter(|process| kill(*process, None).is_ok())
}

/// What is written in the data folder: where a proxy listens, and its process.
fn read(data_dir: &Path) -> Option<(Address, Option<Pid>)> {
    let text = fs::read_to_string(data_dir.join(FILE)).ok()?;
    let mut lines = text.lines();
    let address = Address::parse(lines.next()?.trim())?;
    let process = lines.next().and_then(|line| line.trim().parse::<i32>().ok());
    // 0 and less would be groups.
    Some((address, process.filter(|process| *process > 0).map(Pid::from_raw)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_runs_is_told_from_one_that_has_ended_and_from_another_address() {
        let folder = tempfile::tempdir().unwrap();
        let flags =
            crate::config::Flags { data_dir: Some(folder.path().into()), ..Default::default() };
        let config = |listen: &str| {
            let text = format!(r#"{{"listen": "{listen}"}}"#);
            crate::config::parse(&text, &|_| None, &flags).unwrap().0
        };
        let here = config("127.0.0.1:9123");
        assert_eq!(announced_process(&here), None);
        let announced = Announced::at(folder.path(), &here.listen).unwrap();
        let own = Pid::from_raw(i32::try_from(std::process::id()).unwrap());
        assert_eq!(announced_process(&here), Some(own));
        assert_eq!(announced_process(&config("127.0.0.1:9124")), None);
        for text in [
            "127.0.0.1:9123\n",
            "127.0.0.1:9123\n0\n",
            "127.0.0.1:9123\nx",
            "127.0.0.1:9123\n2147483647\n",
        ] {
            fs::write(folder.path().join(FILE), text).unwrap();
            assert_eq!(announced_process(&here), None, "{text:?}");
            assert!(read(folder.path()).is_some());
        }
        drop(announced);
        assert!(read(folder.path()).is_none());
    }
}
