//! What stands in a certificate: its time, and whom it names. The one place that knows X.509. Pure.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// Most bytes of a name that counts.
const MAX_NAME_BYTES: usize = 255;

/// A digest of a whole certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The digest of a certificate in DER.
#[must_use]
pub fn fingerprint(der: &[u8]) -> Fingerprint {
    Fingerprint(*blake3::hash(der).as_bytes())
}

/// What stands in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// From when on it counts.
    pub from: SystemTime,
    /// Until when.
    pub until: SystemTime,
    /// Whom it names, for a principal: the one common name of its subject (RFC 5280 §4.1.2.6); without one the first
    /// of its alternative names that is a host, an address of mail or a URI (§4.2.1.6).
    pub name: Result<Box<str>, Unnamed>,
}

/// Why a certificate names nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unnamed {
    /// There is no name of a kind that counts.
    #[error("it has neither a common name nor an alternative one")]
    Absent,
    /// Whom it means cannot be known.
    #[error("it has several common names")]
    Several,
    /// Such a name could pass for another, or fill the log.
    #[error("its name must be of 1 to {MAX_NAME_BYTES} bytes, without control characters")]
    Unfit,
}

/// Reads a certificate in DER; `None` if it is none.
#[must_use]
pub fn facts(der: &[u8]) -> Option<CertificateFacts> {
    let (rest, certificate) = X509Certificate::from_der(der).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let validity = certificate.validity();
    Some(CertificateFacts {
        from: moment(validity.not_before.timestamp()),
        until: moment(validity.not_after.timestamp()),
        name: name(&certificate),
    })
}

fn moment(seconds: i64) -> SystemTime {
    let far = Duration::from_secs(seconds.unsigned_abs());
    let moment = match seconds < 0 {
        true => UNIX_EPOCH.checked_sub(far),
        false => UNIX_EPOCH.checked_add(far),
    };
    moment.unwrap_or(UNIX_EPOCH)
}

fn name(certificate: &X509Certificate<'_>) -> Result<Box<str>, Unnamed> {
    let mut common = certificate.subject().iter_common_name();
    if let Some(first) = common.next() {
        return match common.next() {
            Some(_) => Err(Unnamed::Several),
            None => fit(first.as_str().map_err(|_| Unnamed::Unfit)?),
        };
    }
    let others = certificate.subject_alternative_name().map_err(|_| Unnamed::Absent)?;
    let names = others.iter().flat_map(|names| &names.value.general_names);
    let mut texts = names.filter_map(|name| match name {
        GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) => {
            Some(*text)
        }
        GeneralName::OtherName(..)
        | GeneralName::X400Address(_)
        | GeneralName::DirectoryName(_)
        | GeneralName::EDIPartyName(_)
        | GeneralName::IPAddress(_)
        | GeneralName::RegisteredID(_)
        | GeneralName::Invalid(..) => None,
    });
    fit(texts.next().ok_or(Unnamed::Absent)?)
}

fn fit(name: &str) -> Result<Box<str>, Unnamed> {
    let fits = (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.chars().any(char::is_control);
    fits.then(|| name.into()).ok_or(Unnamed::Unfit)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn named(names: &[&str], others: Vec<SanType>) -> Result<Box<str>, Unnamed> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for name in names {
            params.distinguished_name.push(DnType::CommonName, *name);
        }
        params.subject_alt_names = others;
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        facts(certificate.der()).unwrap().name
    }

    #[test]
    fn a_certificate_names_its_common_name_else_its_first_alternative_one() {
        let host = |name: &str| SanType::DnsName(name.try_into().unwrap());
        let mail = SanType::Rfc822Name("ada@example.com".try_into().unwrap());
        let ip = SanType::IpAddress([127, 0, 0, 1].into());
        assert_eq!(named(&["ada"], vec![host("h")]).as_deref(), Ok("ada"));
        assert_eq!(named(&[], vec![ip.clone(), mail, host("h")]).as_deref(), Ok("ada@example.com"));
        assert_eq!(named(&[], vec![host("h")]).as_deref(), Ok("h"));
        assert_eq!(named(&[], vec![ip]), Err(Unnamed::Absent));
    }

    #[test]
    fn a_name_that_could_pass_for_another_is_none() {
        for bad in ["", "a\nb", "a\u{0}", "\u{1b}[1m", "\u{85}", &"x".repeat(MAX_NAME_BYTES + 1)] {
            assert_eq!(named(&[bad], Vec::new()), Err(Unnamed::Unfit), "{bad:?}");
        }
        let longest = "x".repeat(MAX_NAME_BYTES);
        assert_eq!(named(&[&longest], Vec::new()).as_deref(), Ok(&*longest));
    }

    #[test]
    fn its_time_is_read_and_what_is_no_certificate_is_nothing() {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
        let read = facts(&der).unwrap();
        let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert_eq!((seconds(read.from), seconds(read.until)), (978_307_200, 1_009_843_200));
        for cut in 0..der.len() {
            assert_eq!(facts(&der[..cut]), None, "{cut} bytes");
        }
        assert_eq!(facts(&[der, vec![0]].concat()), None);
    }
}
