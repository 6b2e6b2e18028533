//! Egress proxies: selects the HTTP proxy, if any, for the route to a server.
//!
//! A server's own `proxy` takes precedence over the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`), which is read once
//! per process. Lower case takes precedence over upper case. `HTTP_PROXY` is ignored if `REQUEST_METHOD` is set: in a CGI process, any
//! client could set it (CVE-2016-5385).
//!
//! Loopback and link-local destinations are never proxied. The decision uses the name or literal address in the URL; names are not
//! resolved, because often only the proxy can resolve them.
//!
//! Credentials are sent only to the proxy and never shown: `Display` and `Debug` contain host, port and setting.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use percent_encoding::percent_decode_str;
use url::{Host, Url};

/// Value of a server's `proxy` that disables proxies.
pub const NONE: &str = "none";
/// Maximum number of entries of `NO_PROXY`.
pub const MAX_EXCEPTIONS: usize = 1024;

/// An HTTP proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct EgressProxy {
    /// Host without brackets.
    pub(super) host: Box<str>,
    pub(super) port: u16,
    /// Value of `Proxy-Authorization`.
    authorization: Option<HeaderValue>,
    /// Values that must not be shown.
    secrets: Vec<String>,
    /// The setting that configures the proxy.
    setting: Box<str>,
}

impl fmt::Display for EgressProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, setting, .. } = self;
        match host.contains(':') {
            true => write!(f, "proxy [{host}]:{port} ({setting})"),
            false => write!(f, "proxy {host}:{port} ({setting})"),
        }
    }
}

impl fmt::Debug for EgressProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl EgressProxy {
    /// Parses `http://[USER:PASSWORD@]HOST[:PORT]`; the scheme is optional. `setting` is the key or variable that holds the text. The error
    /// quotes at most the scheme.
    pub fn parse(text: &str, setting: &str) -> Result<Self, String> {
        let text = text.trim();
        let has_scheme = text.contains("://");
        let whole = if has_scheme { text.to_owned() } else { format!("http://{text}") };
        let bad = |why: &str| format!("{setting} {why}: write http://HOST:PORT");
        let url = Url::parse(&whole).map_err(|error| bad(&format!("cannot be read ({error})")))?;
        if url.scheme() != "http" {
            return Err(bad(&format!("has scheme {}, and only http is supported", url.scheme())));
        }
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(bad("names no host"));
        };
        let decoded = |text: &str| percent_decode_str(text).collect::<Vec<u8>>();
        let (user, password) = (decoded(url.username()), url.password().map(decoded));
        let (mut authorization, mut secrets) = (None, Vec::new());
        if !user.is_empty() || password.is_some() {
            let password = password.unwrap_or_default();
            let token = STANDARD.encode([&user[..], b":", &password].concat());
            let header = HeaderValue::try_from(format!("Basic {token}"));
            let mut header = header.map_err(|_| bad("has credentials that cannot be sent"))?;
            header.set_sensitive(true);
            authorization = Some(header);
            secrets.push(token);
            secrets.push(String::from_utf8_lossy(&password).into_owned());
            secrets.push(url.password().unwrap_or_default().to_owned());
        }
        let (host, setting) = (bare_host(host).into(), setting.into());
        Ok(Self { host, port, authorization, secrets, setting })
    }

    pub fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// Credentials in the forms in which others may quote them.
    pub fn secrets(&self) -> &[String] {
        &self.secrets
    }

    /// Error for a response of the proxy itself.
    pub fn refused(&self, what: fmt::Arguments<'_>, status: u16) -> String {
        let name = http::StatusCode::from_u16(status).ok().and_then(|it| it.canonical_reason());
        let next = match (status, &self.authorization) {
            (407, None) => "; put USER:PASSWORD@ in front of its host",
            (407, Some(_)) => "; check the user and password",
            (403, _) => "; allow the destination there, or add it to NO_PROXY",
            _ => "",
        };
        format!("{self} refused {what}: {status} {}{next}", name.unwrap_or_default())
    }
}

/// Route to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EgressRoute {
    Direct,
    /// Through a tunnel that the proxy opens for `CONNECT`; used for https.
    Tunnel(Arc<EgressProxy>),
    /// By requests in absolute form (RFC 9112 §3.2.2); used for plain http.
    Forward(Arc<EgressProxy>),
}

impl EgressRoute {
    fn through(proxy: &Arc<EgressProxy>, url: &Url) -> Self {
        match url.scheme() {
            "https" => Self::Tunnel(Arc::clone(proxy)),
            _ => Self::Forward(Arc::clone(proxy)),
        }
    }

    pub fn proxy(&self) -> Option<&Arc<EgressProxy>> {
        match self {
            Self::Direct => None,
            Self::Tunnel(proxy) | Self::Forward(proxy) => Some(proxy),
        }
    }

    /// The proxy, if requests are sent to it in absolute form.
    pub fn forwarding(&self) -> Option<&Arc<EgressProxy>> {
        match self {
            Self::Forward(proxy) => Some(proxy),
            Self::Direct | Self::Tunnel(_) => None,
        }
    }
}

/// Egress setting of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Egress {
    /// The environment configures the route.
    #[default]
    Environment,
    Direct,
    Proxy(Arc<EgressProxy>),
}

impl Egress {
    /// Parses a server's `proxy`: a URL, or [`NONE`].
    pub fn parse(proxy: Option<&str>, setting: &str) -> Result<Self, String> {
        Ok(match proxy.map(str::trim) {
            None => Self::Environment,
            Some(NONE) => Self::Direct,
            Some(proxy) => Self::Proxy(EgressProxy::parse(proxy, setting)?.into()),
        })
    }

    /// Route to a URL. Returns an error if the applicable setting cannot be used, because bypassing a proxy would be worse.
    pub fn route(&self, url: &Url) -> Result<EgressRoute, String> {
        match self {
            Self::Environment => EgressEnvironment::of_process().route(url),
            Self::Proxy(proxy) if !is_local(url) => Ok(EgressRoute::through(proxy, url)),
            Self::Direct | Self::Proxy(_) => Ok(EgressRoute::Direct),
        }
    }

    /// Reason why a URL is contacted directly although a proxy is set; `None` if no proxy is set for it, or if the proxy is used.
    pub fn bypass(&self, url: &Url) -> Option<String> {
        let environment = match self {
            Self::Environment => EgressEnvironment::of_process(),
            Self::Direct => return Some("its proxy is \"none\"".to_owned()),
            Self::Proxy(_) => return is_local(url).then(|| LOCAL.to_owned()),
        };
        environment.proxy(url)?;
        match is_local(url) {
            true => Some(LOCAL.to_owned()),
            false => environment.exception(url).map(|entry| format!("NO_PROXY has '{entry}'")),
        }
    }
}

const LOCAL: &str = "loopback and link-local addresses are never proxied";

/// A proxy, or the reason why its variable cannot be used.
pub type ProxyVariable = Result<Arc<EgressProxy>, String>;

/// The proxy variables of the environment.
#[derive(Debug, Default)]
pub struct EgressEnvironment {
    https: Option<ProxyVariable>,
    http: Option<ProxyVariable>,
    exceptions: Vec<Exception>,
    /// Entries of `NO_PROXY` that are not understood.
    unusable: Vec<String>,
}

impl EgressEnvironment {
    /// The environment, read at first use.
    pub fn of_process() -> &'static Self {
        static ENVIRONMENT: LazyLock<EgressEnvironment> = LazyLock::new(|| {
            let variable = |name: &str| std::env::var_os(name);
            EgressEnvironment::read(&|name| Some(variable(name)?.to_string_lossy().into_owned()))
        });
        &ENVIRONMENT
    }

    /// Reads the variables through `lookup`. Empty variables count as absent.
    pub fn read(lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let value = |name: &str| lookup(name).filter(|value| !value.trim().is_empty());
        let proxy = |names: &[&'static str]| {
            let (name, value) = names.iter().find_map(|name| Some((*name, value(name)?)))?;
            Some(EgressProxy::parse(&value, name).map(Arc::new))
        };
        let http: &[_] = match lookup("REQUEST_METHOD") {
            None => &["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"],
            Some(_) => &["http_proxy", "all_proxy", "ALL_PROXY"],
        };
        let mut read = Self {
            https: proxy(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            http: proxy(http),
            ..Self::default()
        };
        let exceptions = value("no_proxy").or_else(|| value("NO_PROXY")).unwrap_or_default();
        let entries = exceptions.split([',', ' ', '\t', '\n']).filter(|entry| !entry.is_empty());
        for entry in entries {
            match Exception::parse(entry) {
                Some(exception) if read.exceptions.len() < MAX_EXCEPTIONS => {
                    read.exceptions.push(exception);
                }
                Some(_) | None => read.unusable.push(entry.chars().take(80).collect()),
            }
        }
        read
    }

    pub fn route(&self, url: &Url) -> Result<EgressRoute, String> {
        let Some(proxy) = self.proxy(url) else { return Ok(EgressRoute::Direct) };
        if is_local(url) || self.exception(url).is_some() {
            return Ok(EgressRoute::Direct);
        }
        proxy.as_ref().map(|proxy| EgressRoute::through(proxy, url)).map_err(Clone::clone)
    }

    fn proxy(&self, url: &Url) -> Option<&ProxyVariable> {
        match url.scheme() {
            "https" => self.https.as_ref(),
            "http" => self.http.as_ref(),
            _ => None,
        }
    }

    /// The entry of `NO_PROXY` that exempts a URL.
    fn exception(&self, url: &Url) -> Option<&str> {
        let (host, port) = (url.host()?, url.port_or_known_default()?);
        self.exceptions.iter().find(|it| it.has(&host, port)).map(|it| &*it.entry)
    }

    /// The proxies in force, with the scheme of the URLs that each serves.
    pub fn proxies(&self) -> impl Iterator<Item = (&'static str, &ProxyVariable)> {
        let all = [("https", &self.https), ("http", &self.http)];
        all.into_iter().filter_map(|(scheme, proxy)| Some((scheme, proxy.as_ref()?)))
    }

    /// Entries of `NO_PROXY` that are not understood, and those beyond [`MAX_EXCEPTIONS`].
    pub fn unusable_exceptions(&self) -> &[String] {
        &self.unusable
    }
}

/// One entry of `NO_PROXY`.
#[derive(Debug)]
struct Exception {
    /// Entry as written.
    entry: Box<str>,
    hosts: Hosts,
    /// `None` for every port.
    port: Option<u16>,
}

#[derive(Debug)]
enum Hosts {
    All,
    /// The domain itself and its subdomains.
    Domain(String),
    /// Addresses that share these leading bits.
    Network(IpAddr, u8),
}

impl Exception {
    /// Parses `*`, `corp`, `.corp`, `*.corp`, `host:8080`, `10.0.0.1`, `10.0.0.0/8`, `::1`, `[::1]:8080`, `fd00::/8`.
    fn parse(entry: &str) -> Option<Self> {
        let (host, port) = match entry.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']')?;
                (host, after.strip_prefix(':').or_else(|| after.is_empty().then_some(""))?)
            }
            None if entry.matches(':').count() == 1 => entry.split_once(':')?,
            None => (entry, ""),
        };
        let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
        let hosts = match (host, host.split_once('/')) {
            ("*", _) => Hosts::All,
            (_, Some((address, bits))) => {
                let (address, bits) = (address.parse::<IpAddr>().ok()?, bits.parse().ok()?);
                (u32::from(bits) <= width(address)).then_some(Hosts::Network(address, bits))?
            }
            (host, None) => match host.parse::<IpAddr>() {
                Ok(address) => {
                    let address = address.to_canonical();
                    Hosts::Network(address, u8::try_from(width(address)).ok()?)
                }
                Err(_) => {
                    let name = host.strip_prefix('*').unwrap_or(host);
                    let name = name.trim_start_matches('.').trim_end_matches('.');
                    Hosts::Domain(Host::parse(name).ok()?.to_string())
                }
            },
        };
        Some(Self { entry: entry.into(), hosts, port })
    }

    fn has(&self, host: &Host<&str>, port: u16) -> bool {
        if self.port.is_some_and(|only| only != port) {
            return false;
        }
        let address = match host {
            Host::Domain(name) => {
                let name = name.trim_end_matches('.');
                return match &self.hosts {
                    Hosts::All => true,
                    Hosts::Domain(domain) => name
                        .strip_suffix(domain.as_str())
                        .is_some_and(|before| before.is_empty() || before.ends_with('.')),
                    Hosts::Network(..) => false,
                };
            }
            Host::Ipv4(address) => IpAddr::from(*address),
            Host::Ipv6(address) => IpAddr::from(*address).to_canonical(),
        };
        match &self.hosts {
            Hosts::All => true,
            Hosts::Domain(_) => false,
            Hosts::Network(network, bits) => {
                let lead = |address: IpAddr| {
                    let (value, width) = match address {
                        IpAddr::V4(it) => (u128::from(u32::from(it)), 32),
                        IpAddr::V6(it) => (u128::from(it), 128),
                    };
                    value.checked_shr(width - u32::from(*bits)).unwrap_or_default()
                };
                width(*network) == width(address) && lead(*network) == lead(address)
            }
        }
    }
}

/// Number of bits of an address.
fn width(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Whether a URL's host is this machine or on its link, so that a proxy cannot reach it.
fn is_local(url: &Url) -> bool {
    let address = match url.host() {
        None => return true,
        Some(Host::Domain(name)) => return is_localhost(name),
        Some(Host::Ipv4(address)) => IpAddr::from(address),
        Some(Host::Ipv6(address)) => IpAddr::from(address).to_canonical(),
    };
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    link_local || address.is_loopback() || address.is_unspecified()
}

/// Whether a name refers to this machine (RFC 6761 §6.3).
pub fn is_localhost(name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost")
}

/// The host of a URL without the brackets of an IPv6 address.
pub fn bare_host(host: &str) -> &str {
    host.trim_matches(['[', ']'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> EgressEnvironment {
        EgressEnvironment::read(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    fn way(environment: &EgressEnvironment, to: &str) -> String {
        match environment.route(&url(to)) {
            Ok(EgressRoute::Direct) => "direct".to_owned(),
            Ok(EgressRoute::Tunnel(proxy)) => format!("tunnel {proxy}"),
            Ok(EgressRoute::Forward(proxy)) => format!("forward {proxy}"),
            Err(why) => why,
        }
    }

    #[test]
    fn net_9_variable_in_force_depends_on_scheme_and_case() {
        const BOTH: [&str; 2] = ["https://a.example/", "http://a.example/"];
        for (variables, ways) in [
            (&[][..], ["direct", "direct"]),
            (&[("HTTPS_PROXY", "http://p:1")], ["tunnel proxy p:1 (HTTPS_PROXY)", "direct"]),
            (&[("https_proxy", "p:1")], ["tunnel proxy p:1 (https_proxy)", "direct"]),
            (
                &[("https_proxy", "l:1"), ("HTTPS_PROXY", "u:1")],
                ["tunnel proxy l:1 (https_proxy)", "direct"],
            ),
            (
                &[("https_proxy", " "), ("HTTPS_PROXY", "u")],
                ["tunnel proxy u:80 (HTTPS_PROXY)", "direct"],
            ),
            (&[("HTTP_PROXY", "http://p")], ["direct", "forward proxy p:80 (HTTP_PROXY)"]),
            (&[("HTTP_PROXY", "p"), ("REQUEST_METHOD", "GET")], ["direct", "direct"]),
            (
                &[("http_proxy", "p"), ("REQUEST_METHOD", "GET")],
                ["direct", "forward proxy p:80 (http_proxy)"],
            ),
            (
                &[("ALL_PROXY", "http://[::1]:3"), ("http_proxy", "p:2")],
                ["tunnel proxy [::1]:3 (ALL_PROXY)", "forward proxy p:2 (http_proxy)"],
            ),
        ] {
            let environment = environment(variables);
            assert_eq!(BOTH.map(|to| way(&environment, to)), ways, "{variables:?}");
        }
    }

    #[test]
    fn net_9_loopback_and_link_local_are_never_proxied() {
        let environment = environment(&[("ALL_PROXY", "p:1")]);
        let own = Egress::parse(Some("http://q:2"), "proxy").unwrap();
        for host in [
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "169.254.169.254",
            "[fe80::1]",
        ] {
            for to in [format!("https://{host}:9/"), format!("http://{host}:9/")] {
                assert_eq!(way(&environment, &to), "direct", "{to}");
                assert_eq!(own.route(&url(&to)), Ok(EgressRoute::Direct), "{to}");
                assert_eq!(own.bypass(&url(&to)).as_deref(), Some(LOCAL), "{to}");
            }
        }
        for host in ["localhost.example", "notlocalhost", "10.0.0.1", "[fd00::1]"] {
            let to = format!("https://{host}/");
            assert_eq!(way(&environment, &to), "tunnel proxy p:1 (ALL_PROXY)");
            assert_eq!(own.bypass(&url(&to)), None);
        }
    }

    #[test]
    fn net_9_no_proxy_exempts_names_suffixes_ports_and_networks() {
        for (exceptions, direct, proxied) in [
            ("*", &["a.example", "10.0.0.1", "[fd00::1]"][..], &[][..]),
            ("corp", &["corp", "a.corp", "A.B.CORP", "a.corp."], &["acorp", "corp.example"]),
            (".corp", &["corp", "a.corp"], &["acorp"]),
            ("*.corp.", &["a.corp"], &["acorp"]),
            ("a.corp:8080", &["a.corp:8080", "b.a.corp:8080"], &["a.corp", "a.corp:80"]),
            ("a.corp:443", &["a.corp"], &["a.corp:8080"]),
            ("10.0.0.1", &["10.0.0.1", "[::ffff:10.0.0.1]"], &["10.0.0.2", "10.0.0.1.example"]),
            ("10.0.0.1:99", &["10.0.0.1:99"], &["10.0.0.1"]),
            ("10.0.0.0/8", &["10.255.0.1"], &["11.0.0.1", "[::a00:1]"]),
            ("10.1.2.3/0", &["11.0.0.1"], &["[fd00::1]"]),
            ("fd00::/8", &["[fd12::1]"], &["[fe12:0:0:1::1]", "253.0.0.1"]),
            ("fd00::1", &["[fd00::1]"], &["[fd00::2]"]),
            ("[fd00::1]", &["[fd00::1]:99"], &["[fd00::2]"]),
            ("[fd00::1]:99", &["[fd00::1]:99"], &["[fd00::1]"]),
            (
                "a.example, b.example\tc.example,",
                &["a.example", "b.example", "c.example"],
                &["d.example"],
            ),
            ("bücher.example", &["xn--bcher-kva.example"], &["bcher.example"]),
        ] {
            let environment = environment(&[("all_proxy", "p:1"), ("NO_PROXY", exceptions)]);
            assert_eq!(environment.unusable_exceptions(), [""; 0], "{exceptions}");
            for host in direct {
                assert_eq!(
                    way(&environment, &format!("https://{host}/")),
                    "direct",
                    "{exceptions}"
                );
            }
            for host in proxied {
                let way = way(&environment, &format!("https://{host}/"));
                assert!(way.starts_with("tunnel"), "{exceptions} {host}");
            }
        }
    }

    #[test]
    fn net_9_unusable_exception_is_reported_and_has_no_effect() {
        let entries = "10.0.0.0/33,10.0.0.0/x,a:b,[::1,a/8,fd00::/129,:80,a b.example";
        let environment = environment(&[("https_proxy", "p:1"), ("no_proxy", entries)]);
        let unusable = ["10.0.0.0/33", "10.0.0.0/x", "a:b", "[::1", "a/8", "fd00::/129", ":80"];
        assert_eq!(environment.unusable_exceptions(), unusable);
        assert_eq!(way(&environment, "https://10.0.0.1/"), "tunnel proxy p:1 (https_proxy)");
        let many = vec!["a.example"; MAX_EXCEPTIONS + 2].join(",");
        let environment = super::tests::environment(&[("no_proxy", &many)]);
        assert_eq!(environment.exceptions.len(), MAX_EXCEPTIONS);
        assert_eq!(environment.unusable_exceptions().len(), 2);
    }

    #[test]
    fn net_9_unusable_proxy_is_an_error_and_not_a_direct_connection() {
        for (value, why) in [
            ("socks5://u:s3cret@p:1", "has scheme socks5, and only http is supported"),
            ("https://u:s3cret@p:1", "has scheme https, and only http is supported"),
            ("http://u:s3cret@p:port", "cannot be read"),
            ("http://u:s3cret@", "cannot be read"),
        ] {
            let environment = environment(&[("HTTPS_PROXY", value)]);
            let way = way(&environment, "https://a.example/");
            assert!(way.starts_with(&format!("HTTPS_PROXY {why}")), "{way}");
            assert!(!way.contains("s3cret") && way.ends_with("write http://HOST:PORT"), "{way}");
        }
    }

    #[test]
    fn net_9_servers_own_proxy_takes_precedence() {
        let a = url("https://a.example/");
        assert_eq!(Egress::parse(None, "proxy"), Ok(Egress::Environment));
        let none = Egress::parse(Some("none"), "proxy").unwrap();
        assert_eq!((none.clone(), none.route(&a)), (Egress::Direct, Ok(EgressRoute::Direct)));
        assert_eq!(none.bypass(&a).as_deref(), Some("its proxy is \"none\""));
        let own = Egress::parse(Some("q:2"), "mcpServers.s.proxy").unwrap();
        let Ok(EgressRoute::Tunnel(proxy)) = own.route(&a) else { panic!("{own:?}") };
        assert_eq!(proxy.to_string(), "proxy q:2 (mcpServers.s.proxy)");
    }

    #[test]
    fn net_9_credentials_are_sent_and_not_shown() {
        let proxy = EgressProxy::parse("http://us%20er:p%40ss-word@p:1", "HTTPS_PROXY").unwrap();
        assert_eq!(proxy.authorization().unwrap(), "Basic dXMgZXI6cEBzcy13b3Jk");
        assert_eq!(proxy.secrets(), ["dXMgZXI6cEBzcy13b3Jk", "p@ss-word", "p%40ss-word"]);
        let shown = format!("{proxy} {proxy:?} {:?}", proxy.authorization());
        for secret in proxy.secrets() {
            assert!(!shown.contains(secret.as_str()), "{shown}");
        }
        let open = EgressProxy::parse("p:1", "HTTPS_PROXY").unwrap();
        assert!(open.authorization().is_none() && open.secrets().is_empty());
        for (proxy, status, next) in [
            (&open, 407, "407 Proxy Authentication Required; put USER:PASSWORD@"),
            (&proxy, 407, "407 Proxy Authentication Required; check the user"),
            (&proxy, 403, "403 Forbidden; allow the destination there"),
            (&open, 502, "502 Bad Gateway"),
            (&open, 799, "799 "),
        ] {
            let message = proxy.refused(format_args!("a tunnel to h:443"), status);
            let start = "proxy p:1 (HTTPS_PROXY) refused a tunnel to h:443: ";
            let rest = message.strip_prefix(start).unwrap();
            assert!(rest.starts_with(next), "{message}");
        }
    }
}
