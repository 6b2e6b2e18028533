//! Where a client comes from, as far as bounds are counted: so that what one address opens is at
//! the expense of that address.
//!
//! Everything on this machine is one source, which may have all there is: agents and the command
//! line share it, and none of them can be told from another.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// One in so many of all places is for one address of another machine.
const SHARES: usize = 4;

/// An IPv4 address, or the network of 64 bits that an IPv6 address lies in, all of which one client
/// may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Source {
    /// This machine.
    #[default]
    Loopback,
    /// Another one.
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
    /// The source of a peer's address.
    #[must_use]
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

    /// How many of `all` places it may have; one at least.
    #[must_use]
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
    fn one_machine_is_one_source_and_a_network_of_64_bits_too() {
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
    fn the_command_line_is_not_shut_out_by_a_share() {
        let remote = Source::of("10.0.0.1".parse().unwrap());
        assert_eq!((Source::Loopback.share(70), remote.share(70), remote.share(2)), (70, 17, 1));
    }
}
