//! The section `tls`: which files the listener's certificate, its key and the clients' authorities are in.

use std::path::PathBuf;
use std::time::SystemTime;

use serde::Deserialize;

use super::findings::Findings;
use super::problem::KeyPath;
use crate::io::address::Address;
use crate::io::tls::{CertifiedPair, TlsFileProblem, TlsKey, roots};

/// The section `tls`, as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct TlsSection {
    cert: Option<String>,
    key: Option<String>,
    client_ca: Option<String>,
}

/// The files of the section `tls`; those that are no whole paths are from the folder of the config file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// `tls.cert`: the certificate, then its chain.
    pub cert: PathBuf,
    /// `tls.key`
    pub key: PathBuf,
    /// `tls.client_ca`: whose certificates make a client known. A client need not have one.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Everything that keeps them from being used at the moment `now`. Reads them.
    pub(super) fn problems(&self, now: SystemTime) -> Vec<TlsFileProblem> {
        let pair = CertifiedPair::load(&self.cert, &self.key, now).err();
        let clients = self.client_ca.as_deref();
        let clients = clients.and_then(|file| roots(TlsKey::ClientCa, file).err());
        pair.into_iter().chain(clients).collect()
    }

    /// All of them.
    pub(super) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [&mut self.cert, &mut self.key].into_iter().chain(&mut self.client_ca)
    }
}

impl TlsSection {
    /// Reads the section; `expand` replaces `~`.
    pub(super) fn read(
        self,
        listen: &Address,
        expand: impl Fn(&str) -> Option<PathBuf>,
        findings: &mut Findings<'_>,
    ) -> Option<TlsFiles> {
        let at = KeyPath::root("tls");
        if let Address::Unix(_) = listen {
            findings.error(&at, "a Unix socket has no TLS: listen on an address, or leave tls out");
            return None;
        }
        let mut file = |name: &str, text: Option<String>| {
            let found = text.filter(|text| !text.is_empty()).and_then(|text| expand(&text));
            if found.is_none() {
                findings.error(&at.key(name), "names no file: name a file in PEM");
            }
            found
        };
        let (cert, key) = (file("cert", self.cert), file("key", self.key));
        let client_ca = self.client_ca.map(|text| file("client_ca", Some(text)));
        Some(TlsFiles { cert: cert?, key: key?, client_ca: client_ca.flatten() })
    }
}
