//! Certificates for a test, and a `curl` that trusts them.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, date_time_ymd,
};

use super::{Output, unix_now, write_private};

/// An authority that signs certificates.
pub(crate) struct CertificateAuthority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate and its key in PEM.
#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Pair {
    /// Writes `NAME.pem` and `NAME.key` into a folder.
    pub(crate) fn write(&self, folder: &Path, name: &str) {
        write_private(&folder.join(format!("{name}.pem")), &self.cert);
        write_private(&folder.join(format!("{name}.key")), &self.key);
    }
}

impl CertificateAuthority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Certificate of a server for these names and addresses.
    pub(crate) fn server(&self, names: &[&str]) -> Pair {
        self.sign(params("server", names))
    }

    /// Certificate of a server on this machine.
    pub(crate) fn local(&self) -> Pair {
        self.server(&["localhost", "127.0.0.1"])
    }

    /// Certificate of a client for this name.
    pub(crate) fn client(&self, name: &str) -> Pair {
        let mut params = params(name, &[]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// Certificate of a client that is valid for `time` from now.
    pub(crate) fn client_for(&self, name: &str, time: Duration) -> Pair {
        let mut params = params(name, &[]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(unix_now()) + time;
        self.sign(params)
    }

    /// Expired certificate with these names.
    pub(crate) fn expired(&self, name: &str, names: &[&str]) -> Pair {
        let mut params = params(name, names);
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Pair { cert, key: key.serialize_pem() }
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn params(name: &str, names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    params.distinguished_name = named(name);
    params
}

#[derive(Debug)]
pub(crate) struct Curled {
    /// Status of the answer; 0 if there was none.
    pub(crate) status: u16,
    /// Version of HTTP: `1.1` or `2`.
    pub(crate) version: String,
    pub(crate) headers: String,
    pub(crate) body: String,
    /// Error of curl if there was no answer.
    pub(crate) error: String,
}

impl Curled {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// Runs curl in the folder that contains the files of the certificates.
pub(crate) fn curl(folder: &Path, args: &[&str]) -> Curled {
    let mut command = Command::new("curl");
    command.current_dir(folder).args(["-q", "-sS", "--noproxy", "*", "--max-time", "30"]);
    command.args(["-D", "/dev/stderr", "-w", "\n%{http_code} %{http_version}"]).args(args);
    let output = Output::of(&mut command);
    let (body, last) = output.stdout.rsplit_once('\n').expect("its last line");
    let (status, version) = last.split_once(' ').expect("status and version");
    let (error, headers): (Vec<&str>, Vec<&str>) =
        output.stderr.lines().partition(|line| line.starts_with("curl:"));
    Curled {
        status: status.parse().expect("a status"),
        version: version.to_owned(),
        headers: headers.join("\n"),
        body: body.to_owned(),
        error: error.join("\n"),
    }
}
