//! The files of TLS: of the listener, and of each server that has some. Whether they can be used, for how much longer, and
//! who else can read a key.

use std::path::Path;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use super::finding::{Diagnosis, DiagnosisKind};
use crate::cli::terminal_safe::quoted;
use crate::config::Config;
use crate::io::tls::{CertifiedPair, TlsFileProblem, TlsKey, roots};
use crate::os::private;

const CHECK: &str = "tls";
/// From so long before its end a certificate is told of.
const NEAR: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// The rights of others than owner and group.
const OF_OTHERS: u32 = 0o007;

/// The files of one section.
struct Section<'a> {
    /// The path of its key.
    at: String,
    cert: Option<&'a Path>,
    key: Option<&'a Path>,
    roots: Option<(TlsKey, &'a Path)>,
}

/// Looks at all of them; nothing where there is no TLS.
pub(super) fn look(config: &Config, now: SystemTime) -> Vec<Diagnosis> {
    let listener = config.tls.iter().map(|tls| Section {
        at: "tls".to_owned(),
        cert: Some(&tls.cert),
        key: Some(&tls.key),
        roots: tls.client_ca.as_deref().map(|file| (TlsKey::ClientCa, file)),
    });
    let enabled = config.servers.iter().filter(|server| server.upstream.enabled);
    let servers = enabled.filter_map(|server| {
        let tls = server.upstream.tls.as_ref()?;
        Some(Section {
            at: format!("mcpServers.{}.tls", server.name),
            cert: tls.cert.as_deref(),
            key: tls.key.as_deref(),
            roots: tls.ca.as_deref().map(|file| (TlsKey::Ca, file)),
        })
    });
    listener.chain(servers).flat_map(|section| of_section(&section, now)).collect()
}

fn of_section(section: &Section<'_>, now: SystemTime) -> Vec<Diagnosis> {
    let mut found = Vec::new();
    if let (Some(cert), Some(key)) = (section.cert, section.key) {
        found.push(match CertifiedPair::load(cert, key, now) {
            Ok(pair) => ends(section, cert, pair.facts.until, now),
            Err(problem) => wrong(section, &problem),
        });
    }
    found.extend(section.key.and_then(|key| exposed(section, key)));
    if let Some((name, file)) = section.roots {
        found.push(match roots(name, file) {
            Ok((store, _)) => {
                let told = format!("{} authorities in {}", store.len(), file.display());
                Diagnosis::fine(CHECK, format!("{}.{}: {told}", section.at, name.as_str()))
            }
            Err(problem) => wrong(section, &problem),
        });
    }
    found
}

fn ends(section: &Section<'_>, cert: &Path, until: SystemTime, now: SystemTime) -> Diagnosis {
    let end = Timestamp::try_from(until).map(|end| format!("{end:.0}")).unwrap_or_default();
    let told = format!("{}.cert: {} holds until {end}", section.at, cert.display());
    match until.duration_since(now).is_ok_and(|left| left > NEAR) {
        true => Diagnosis::fine(CHECK, told),
        false => {
            Diagnosis { mend: RENEW.to_owned(), ..Diagnosis::new(DiagnosisKind::Odd, CHECK, told) }
        }
    }
}

const RENEW: &str = "have it renewed, by `certbot renew` or by who issued it: new files are taken up without a restart";

fn wrong(section: &Section<'_>, problem: &TlsFileProblem) -> Diagnosis {
    let told = format!("{}.{}: {problem}", section.at, problem.key.as_str());
    Diagnosis::wrong(CHECK, told, mend(section, problem))
}

/// What mends a file that cannot be used.
fn mend(section: &Section<'_>, problem: &TlsFileProblem) -> String {
    let says = |words: &str| problem.what.contains(words);
    let file = word(&problem.file);
    match problem.key {
        TlsKey::Cert if says("has expired") => RENEW.to_owned(),
        TlsKey::Cert if says("not valid before") => {
            "timedatectl set-ntp true, if the clock is wrong; else wait, or have one issued"
                .to_owned()
        }
        TlsKey::Key if says("does not fit") => {
            let cert = section.cert.map(word).unwrap_or_default();
            format!(
                "name the key that belongs to it: `openssl x509 -noout -pubkey -in {cert}` and \
                 `openssl pkey -pubout -in {file}` print the same for a pair"
            )
        }
        TlsKey::Key if says("encrypted") => {
            format!("openssl pkey -in {file} -out {file}.plain, readable for you alone")
        }
        TlsKey::Cert | TlsKey::Key | TlsKey::Ca | TlsKey::ClientCa
            if says("cannot be read") && problem.file.exists() =>
        {
            format!(
                "ls -l {file}: who runs mcpproxy must be able to read it, and it must be a file"
            )
        }
        TlsKey::Cert | TlsKey::Key | TlsKey::Ca | TlsKey::ClientCa => {
            "name a file in PEM: $EDITOR \"$(mcpproxy config path)\"".to_owned()
        }
    }
}

/// A key that others can read. Its group may be meant to: some systems have one for keys.
fn exposed(section: &Section<'_>, key: &Path) -> Option<Diagnosis> {
    let wide = private::wider(key)?;
    let told =
        format!("{}.key: others have rights on {} (mode {wide:03o})", section.at, key.display());
    let outcome = match wide & OF_OTHERS {
        0 => DiagnosisKind::Odd,
        _ => DiagnosisKind::Wrong,
    };
    let mend = format!("chmod 600 {}", word(key));
    Some(Diagnosis { mend, ..Diagnosis::new(outcome, CHECK, told) })
}

/// A path as a shell takes it.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    quoted(&text).map_or_else(|| "FILE".to_owned(), std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::config::{Flags, parse};

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn config(folder: &Path, tls: &str) -> Config {
        let flags = Flags { data_dir: Some(folder.into()), ..Flags::default() };
        parse(tls, &|_| None, &flags).unwrap().0
    }

    fn told(found: &[Diagnosis]) -> Vec<(DiagnosisKind, &str, &str)> {
        found.iter().map(|it| (it.outcome, it.text.as_str(), it.mend.as_str())).collect()
    }

    #[test]
    fn every_file_of_tls_is_looked_at_and_what_mends_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let put = |name: &str, text: &str, mode: u32| {
            fs::write(file(name), text).unwrap();
            fs::set_permissions(file(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let key = KeyPair::generate().unwrap();
        let now = SystemTime::now();
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.not_after = (now + 30 * DAY).into();
        put("c.pem", &params.self_signed(&key).unwrap().pem(), 0o644);
        put("k.pem", &key.serialize_pem(), 0o600);
        put("other.pem", &KeyPair::generate().unwrap().serialize_pem(), 0o644);
        put("group.pem", &key.serialize_pem(), 0o640);
        let at = |name: &str| file(name).display().to_string();
        let listener = |key: &str, ca: &str| {
            let text = format!(
                r#"{{"tls": {{"cert": "{}", "key": "{}", "client_ca": "{}"}}}}"#,
                at("c.pem"),
                at(key),
                at(ca)
            );
            config(folder.path(), &text)
        };
        let kinds = |found: &[Diagnosis]| found.iter().map(|it| it.outcome).collect::<Vec<_>>();
        use DiagnosisKind::{Fine, Odd, Wrong};

        let good = listener("k.pem", "c.pem");
        assert_eq!(kinds(&look(&good, now)), [Fine, Fine]);
        let soon = look(&good, now + 20 * DAY);
        assert_eq!(kinds(&soon), [Odd, Fine], "{soon:?}");
        assert!(soon[0].mend.contains("renew"), "{soon:?}");
        let over = look(&good, now + 31 * DAY);
        assert!(over[0].text.contains("has expired") && over[0].mend.contains("renew"), "{over:?}");
        assert_eq!(over[0].outcome, Wrong);
        let early = look(&good, SystemTime::UNIX_EPOCH);
        assert!(early[0].mend.contains("clock"), "{early:?}");

        let another = look(&listener("other.pem", "none.pem"), now);
        assert_eq!(kinds(&another), [Wrong, Wrong, Wrong], "{another:?}");
        let [mismatch, rights, ca] = &told(&another)[..] else { panic!() };
        assert!(
            mismatch.1.starts_with("tls.key: ") && mismatch.2.contains("openssl pkey"),
            "{mismatch:?}"
        );
        assert!(rights.1.contains("644") && rights.2.starts_with("chmod 600 "), "{rights:?}");
        assert!(ca.1.starts_with("tls.client_ca: ") && ca.2.contains("config path"), "{ca:?}");
        let group = look(&listener("group.pem", "c.pem"), now);
        assert_eq!(kinds(&group), [Fine, Odd, Fine], "{group:?}");

        let server = config(
            folder.path(),
            &format!(
                r#"{{"mcpServers": {{"s": {{"url": "https://x", "tls": {{"ca": "{}"}}}},
                    "off": {{"url": "https://x", "enabled": false, "tls": {{"ca": "/none"}}}}}}}}"#,
                at("k.pem")
            ),
        );
        let found = look(&server, now);
        assert_eq!(kinds(&found), [Wrong], "{found:?}");
        assert!(found[0].text.starts_with("mcpServers.s.tls.ca: "), "{found:?}");
        assert!(look(&config(folder.path(), "{}"), now).is_empty());
    }
}
