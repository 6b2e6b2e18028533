//! `Host` and `Origin` checks that run before every endpoint, and the settings that admit an HTTP request.
//!
//! Keeps foreign web pages (DNS rebinding, cross-site requests) away from a proxy on loopback. Independent of API keys,
//! which are a second check and not a substitute. Pure.

use core::net::SocketAddr;
use std::fmt;

use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, StatusCode};

/// Host names of a proxy on loopback, with any port.
pub(crate) const LOOPBACK_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Maximum length of a refused value quoted in the refusal, in bytes.
const SHOWN_BYTES: usize = 100;

/// Origin of the page that caused a request, as the browser states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskingOrigin {
    /// No origin is stated: the request comes from a program, or is a browser request that changes nothing.
    Unstated,
    /// Our own page: the requested `Host`, or an origin listed in full in the config.
    Own,
    /// Any other origin, allowed or not.
    Foreign,
}

/// Allowed hosts and origins, parsed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCheck {
    hosts: Vec<HostPort>,
    origins: Vec<AllowedOrigin>,
}

/// Malformed entry of `allowed_hosts` or `allowed_origins`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: '{entry}' is not {expected}")]
pub struct BadEntry {
    key: &'static str,
    entry: String,
    expected: &'static str,
}

impl BadEntry {
    /// Error text without the config key.
    pub fn problem(&self) -> String {
        format!("'{}' is not {}", self.entry, self.expected)
    }
}

/// Reason why a request is rejected before anything else is read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostRefused {
    /// The request has neither `Host` nor an authority in the request line.
    #[error("Host header is missing")]
    NoHost,
    /// The header is repeated.
    #[error("{0} header is given more than once")]
    Duplicate(HeaderName),
    /// The host is not allowed, or not `name[:port]`.
    #[error("Host '{0}' is not allowed (see allowed_hosts in the config)")]
    Host(String),
    /// The origin is not allowed, `null`, or not `scheme://name[:port]`.
    #[error("Origin '{0}' is not allowed (see allowed_origins in the config)")]
    Origin(String),
}

impl HostRefused {
    /// 400 for malformed HTTP, 403 for a host or origin that is not allowed.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoHost | Self::Duplicate(_) => StatusCode::BAD_REQUEST,
            Self::Host(_) | Self::Origin(_) => StatusCode::FORBIDDEN,
        }
    }
}

impl HostCheck {
    /// Parses the lists of the config. An empty list means the loopback names.
    ///
    /// A host is `name` (any port) or `name:port`. An origin is a host (`http` and `https`), or
    /// `scheme://name[:port]`, which must then match exactly.
    ///
    /// # Errors
    /// The first malformed entry.
    pub fn new(allowed_hosts: &[String], allowed_origins: &[String]) -> Result<Self, BadEntry> {
        let host = |entry: &str| {
            HostPort::parse(entry).ok_or_else(|| BadEntry {
                key: "allowed_hosts",
                entry: entry.to_owned(),
                expected: "a host name, or a host name with a port",
            })
        };
        let origin = |entry: &str| {
            AllowedOrigin::parse(entry).ok_or_else(|| BadEntry {
                key: "allowed_origins",
                entry: entry.to_owned(),
                expected: "a host name, or an origin like https://app.example.com",
            })
        };
        Ok(Self {
            hosts: or_loopback(allowed_hosts).map(host).collect::<Result<_, _>>()?,
            origins: or_loopback(allowed_origins).map(origin).collect::<Result<_, _>>()?,
        })
    }

    /// Allows this host too; a malformed one is ignored.
    pub fn with_host(mut self, host: &str) -> Self {
        self.hosts.extend(HostPort::parse(host));
        self
    }

    /// Checks one request. `authority` is the authority of an absolute request target; it must be allowed in addition
    /// to the `Host` header.
    ///
    /// # Errors
    /// The first violation; [`HostRefused::status`] is the status of the response.
    pub fn check(
        &self,
        headers: &HeaderMap,
        authority: Option<&Authority>,
    ) -> Result<(), HostRefused> {
        let host = only(headers, HOST)?;
        if host.is_none() && authority.is_none() {
            return Err(HostRefused::NoHost);
        }
        for name in [host, authority.map(|name| name.as_str().as_bytes())].into_iter().flatten() {
            let known = std::str::from_utf8(name).ok().and_then(HostPort::parse);
            if !known.is_some_and(|name| self.hosts.iter().any(|host| host.covers(&name))) {
                return Err(HostRefused::Host(shown(name)));
            }
        }
        let Some(origin) = only(headers, ORIGIN)? else { return Ok(()) };
        let known = std::str::from_utf8(origin).ok().and_then(Origin::parse);
        match known.is_some_and(|origin| self.origins.iter().any(|one| one.covers(&origin))) {
            true => Ok(()),
            false => Err(HostRefused::Origin(shown(origin))),
        }
    }
}

impl HostCheck {
    /// Origin of the page that caused an allowed request. Another port of the same host counts as foreign, even if
    /// `allowed_origins` allows it.
    pub fn asking(&self, headers: &HeaderMap) -> AskingOrigin {
        let Ok(Some(origin)) = only(headers, ORIGIN) else { return AskingOrigin::Unstated };
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let Some(origin) = text(origin).and_then(Origin::parse) else {
            return AskingOrigin::Foreign;
        };
        let host = only(headers, HOST).ok().flatten().and_then(text).and_then(HostPort::parse);
        let is_host = host.is_some_and(|host| {
            let port = host.port.or_else(|| Origin::port_of(&origin.scheme));
            host.name == origin.host.name && port == origin.host.port
        });
        let is_named = self.origins.iter().any(|one| match one {
            AllowedOrigin::Exact(exact) => *exact == origin,
            AllowedOrigin::Host(_) => false,
        });
        if is_host || is_named { AskingOrigin::Own } else { AskingOrigin::Foreign }
    }

    /// `host:port` under which a browser reaches `address`: the first allowed name, or `address` itself if its host is
    /// allowed or the list is empty.
    pub fn address_for_browsers(&self, address: SocketAddr) -> String {
        let text = address.to_string();
        let host = HostPort::parse(&text);
        match self.hosts.first() {
            Some(first) if !host.is_some_and(|it| self.hosts.iter().any(|one| one.covers(&it))) => {
                format!("{}:{}", first.name, first.port.unwrap_or(address.port()))
            }
            Some(_) | None => text,
        }
    }
}

/// `name[:port]`, lower case; an entry without a port covers any port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostPort {
    name: String,
    port: Option<u16>,
}

impl HostPort {
    /// Parses strictly: no user info, trailing dot, white space or empty port.
    fn parse(text: &str) -> Option<Self> {
        let end = match text.strip_prefix('[') {
            Some(rest) => rest.find(']')? + 2,
            None => text.find(':').unwrap_or(text.len()),
        };
        let (name, port) = (text.get(..end)?, text.get(end..)?);
        let port = match port.strip_prefix(':') {
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            Some(_) => return None,
            None if port.is_empty() => None,
            None => return None,
        };
        let plain = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(inner) => inner.parse::<core::net::Ipv6Addr>().is_ok(),
            None => {
                !name.is_empty()
                    && !name.ends_with('.')
                    && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
            }
        };
        plain.then(|| Self { name: name.to_ascii_lowercase(), port })
    }

    fn covers(&self, other: &Self) -> bool {
        self.name == other.name && (self.port.is_none() || self.port == other.port)
    }
}

/// `scheme://name[:port]` as a browser sends it; `null` is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: HostPort,
}

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        let (scheme, host) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
        if scheme.is_empty() || !scheme.bytes().all(plain) {
            return None;
        }
        let mut host = HostPort::parse(host)?;
        host.port = host.port.or_else(|| Self::port_of(&scheme));
        Some(Self { scheme, host })
    }

    /// Default port of the scheme.
    fn port_of(scheme: &str) -> Option<u16> {
        match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum AllowedOrigin {
    /// This host with `http` or `https`.
    Host(HostPort),
    Exact(Origin),
}

impl AllowedOrigin {
    fn parse(text: &str) -> Option<Self> {
        match text.contains("://") {
            true => Origin::parse(text).map(Self::Exact),
            false => HostPort::parse(text).map(Self::Host),
        }
    }

    fn covers(&self, origin: &Origin) -> bool {
        match self {
            Self::Host(host) => {
                matches!(origin.scheme.as_str(), "http" | "https") && host.covers(&origin.host)
            }
            Self::Exact(exact) => exact == origin,
        }
    }
}

fn or_loopback(list: &[String]) -> impl Iterator<Item = &str> {
    let names: &[&str] = if list.is_empty() { &LOOPBACK_NAMES } else { &[] };
    list.iter().map(String::as_str).chain(names.iter().copied())
}

/// The header's single value; a repeated header is ambiguous and rejected.
fn only(headers: &HeaderMap, name: HeaderName) -> Result<Option<&[u8]>, HostRefused> {
    let mut values = headers.get_all(&name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(HostRefused::Duplicate(name));
    }
    Ok(first.map(|value| value.as_bytes()))
}

fn shown(value: &[u8]) -> String {
    let cut = value.get(..SHOWN_BYTES).unwrap_or(value);
    String::from_utf8_lossy(cut).into_owned()
}

/// Settings that admit an HTTP request before its body is read. `Debug` does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpAuth {
    /// API key for `/api/v1` and `/events`; an empty key admits nothing.
    pub api_key: Box<str>,
    /// `require_mcp_auth`: whether `/mcp` requires the key too.
    pub require_mcp_auth: bool,
    pub host_check: HostCheck,
}

impl fmt::Debug for HttpAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpAuth")
            .field("require_mcp_auth", &self.require_mcp_auth)
            .field("host_check", &self.host_check)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_guard() -> HostCheck {
        HostCheck::new(&[], &[]).unwrap()
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())
        };
        let mut map = HeaderMap::new();
        pairs.iter().map(pair).for_each(|(name, value)| {
            map.append(name, value);
        });
        map
    }

    fn check(guard: &HostCheck, pairs: &[(&str, &str)]) -> Result<(), HostRefused> {
        guard.check(&headers(pairs), None)
    }

    #[test]
    fn loopback_names_pass_with_any_port_and_case() {
        for host in ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:65535", "LOCALHOST:80"] {
            assert_eq!(check(&default_guard(), &[("host", host)]), Ok(()), "{host}");
        }
    }

    #[test]
    fn foreign_and_disguised_hosts_are_refused() {
        for host in [
            "evil.com",
            "evil.com:8080",
            "localhost.evil.com",
            "127.0.0.1.nip.io",
            "localhost.",
            "localhost.:8080",
            "user@localhost",
            "localhost@evil.com",
            "localhost:8080@evil.com",
            "localhost:",
            "localhost:+80",
            "localhost:99999",
            "localhost 8080",
            "127.1",
            "0.0.0.0",
            "[::1",
            "[::1]8080",
            "[::ffff:127.0.0.1]",
            "[localhost]",
            "http://localhost",
            "",
        ] {
            let refused = check(&default_guard(), &[("host", host)]);
            assert_eq!(refused, Err(HostRefused::Host(host.to_owned())), "{host}");
        }
    }

    #[test]
    fn missing_or_repeated_host_is_refused() {
        let two = [("host", "localhost"), ("host", "localhost")];
        assert_eq!(check(&default_guard(), &two), Err(HostRefused::Duplicate(HOST)));
        assert_eq!(check(&default_guard(), &[]), Err(HostRefused::NoHost));
        assert_eq!(HostRefused::NoHost.status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn absolute_target_is_checked_in_addition_to_host() {
        let guard = default_guard();
        let (evil, good) =
            (Authority::from_static("evil.com"), Authority::from_static("localhost:1"));
        let ours = headers(&[("host", "localhost")]);
        assert_eq!(guard.check(&ours, Some(&evil)), Err(HostRefused::Host("evil.com".into())));
        assert_eq!(guard.check(&ours, Some(&good)), Ok(()));
        assert_eq!(guard.check(&HeaderMap::new(), Some(&good)), Ok(()));
        let theirs = headers(&[("host", "evil.com")]);
        assert_eq!(guard.check(&theirs, Some(&good)), Err(HostRefused::Host("evil.com".into())));
    }

    #[test]
    fn foreign_origins_are_rejected() {
        let guard = default_guard();
        let origin = |value| check(&guard, &[("host", "localhost"), ("origin", value)]);
        for good in ["http://localhost:8080", "https://127.0.0.1", "http://[::1]:3"] {
            assert_eq!(origin(good), Ok(()), "{good}");
        }
        for bad in [
            "null",
            "http://evil.com",
            "http://localhost.evil.com",
            "http://localhost.",
            "http://localhost@evil.com",
            "http://user@localhost",
            "file://localhost",
            "http://localhost/path",
            "localhost",
            "",
        ] {
            assert_eq!(origin(bad), Err(HostRefused::Origin(bad.to_owned())), "{bad}");
            assert_eq!(HostRefused::Origin(bad.to_owned()).status(), StatusCode::FORBIDDEN);
        }
        let two = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "null")];
        assert_eq!(check(&guard, &two), Err(HostRefused::Duplicate(ORIGIN)));
    }

    #[test]
    fn configured_lists_replace_the_loopback_names() {
        let hosts = ["proxy.lan:8080".to_owned()];
        let origins = ["https://app.lan".to_owned(), "tool.lan".to_owned()];
        let guard = HostCheck::new(&hosts, &origins).unwrap();
        assert!(check(&guard, &[("host", "proxy.lan:8080")]).is_ok());
        assert!(check(&guard, &[("host", "proxy.lan:8081")]).is_err());
        assert!(check(&guard, &[("host", "localhost")]).is_err());
        let from = |origin| check(&guard, &[("host", "proxy.lan:8080"), ("origin", origin)]);
        assert!(from("https://app.lan").is_ok());
        assert!(from("https://app.lan:443").is_ok());
        assert!(from("http://app.lan").is_err());
        assert!(from("http://tool.lan:1234").is_ok());
    }

    #[test]
    fn own_page_differs_from_allowed_origins() {
        let named = ["https://app.lan".to_owned(), "tool.lan".to_owned()];
        let guard = HostCheck::new(&["h".to_owned()], &named).unwrap();
        let asking = |host: &str, origin: &str| {
            guard.asking(&headers(&[("host", host), ("origin", origin)]))
        };
        for (host, origin, expected) in [
            ("h:8080", "http://h:8080", AskingOrigin::Own),
            ("H:8080", "http://h:8080", AskingOrigin::Own),
            ("h", "https://h", AskingOrigin::Own),
            ("h:443", "https://h", AskingOrigin::Own),
            ("h:8080", "https://app.lan", AskingOrigin::Own),
            ("h:8080", "http://h:8081", AskingOrigin::Foreign),
            ("h:8080", "http://h", AskingOrigin::Foreign),
            ("h:8080", "http://tool.lan", AskingOrigin::Foreign),
            ("h:8080", "null", AskingOrigin::Foreign),
            ("h:8080", "", AskingOrigin::Foreign),
        ] {
            assert_eq!(asking(host, origin), expected, "{host} {origin}");
        }
        assert_eq!(guard.asking(&headers(&[("host", "h")])), AskingOrigin::Unstated);
    }

    #[test]
    fn browser_address_uses_an_allowed_host() {
        let address = "127.0.0.1:8080".parse().unwrap();
        assert_eq!(default_guard().address_for_browsers(address), "127.0.0.1:8080");
        let guard = |host: &str| HostCheck::new(&[host.to_owned()], &[]).unwrap();
        assert_eq!(guard("proxy.lan").address_for_browsers(address), "proxy.lan:8080");
        assert_eq!(guard("proxy.lan:1").address_for_browsers(address), "proxy.lan:1");
    }

    #[test]
    fn error_quotes_the_malformed_entry() {
        let bad = HostCheck::new(&["http://x/".to_owned()], &[]).unwrap_err();
        assert_eq!(
            bad.to_string(),
            "allowed_hosts: 'http://x/' is not a host name, or a host name with a port"
        );
        let bad = HostCheck::new(&[], &["null:".to_owned()]).unwrap_err();
        assert!(bad.to_string().starts_with("allowed_origins: 'null:'"), "{bad}");
    }
}
