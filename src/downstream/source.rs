//! Address that a client's usage is charged to, so that one address exhausts only its own share.
//!
//! The local machine is one source without a share: agents and the command line cannot be told apart there.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Divisor: a remote address may use one quarter of a bound.
const SHARES: usize = 4;

/// An IPv4 address, or an IPv6 /64, which one client may own entirely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    #[default]
    Loopback,
    Remote(IpAddr),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("this machine"),
            Self::Remote(address) => address.fmt(f),
        }
    }
}

impl Source {
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Self::Loopback,
            IpAddr::V4(address) => Self::Remote(address.into()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self::Remote(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
        }
    }

    /// Share of `all`; at least one.
    pub fn share(self, all: usize) -> usize {
        match self {
            Self::Loopback => all,
            Self::Remote(_) => (all / SHARES).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_machine_and_ipv6_64_network_are_one_source_each() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        for loopback in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(of(loopback), Source::Loopback, "{loopback}");
        }
        assert_eq!(of("10.0.0.1"), of("::ffff:10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
    }

    #[test]
    fn local_machine_has_no_quota() {
        let remote = Source::of("10.0.0.1".parse().unwrap());
        assert_eq!((Source::Loopback.share(70), remote.share(70), remote.share(2)), (70, 17, 1));
    }
}
