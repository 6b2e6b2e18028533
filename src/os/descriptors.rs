//! File descriptors: the limit, and how it is shared out.
//!
//! The log and the upstreams come first: a client that opens connections must not take what they
//! need, since a log that cannot open a file has failed. So the listener's share is what is left
//! when theirs is set aside, and half of it at that, because each connection may have a call that
//! needs another one to an upstream.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// As many as are of use with the bounds of this program; children inherit the limit, and some do
/// work for each descriptor they might have.
const WANTED: u64 = 65_536;
/// For the standard streams, signals, the listener, and files that are read and written now and
/// then.
const RESERVED_FOR_PROCESS: usize = 32;
/// For the event queue of a worker thread and what wakes it.
const RESERVED_FOR_WORKER: usize = 4;
/// For the log's journals, its locks and head, and the tables it writes while it tidies up.
const RESERVED_FOR_STORE: usize = 40;
/// Tables that the log keeps open to be read, at least and at most.
const STORE_TABLES: (usize, usize) = (24, 900);
/// Of all descriptors one in so many is for the log's tables.
const STORE_SHARE: usize = 8;
/// For a server: a child's pipes, or connections for discovery and for what it says unasked.
const RESERVED_FOR_SERVER: usize = 4;
/// Connections of clients however few descriptors there are.
const MIN_CONNECTIONS: usize = 8;

/// Raises the limit as far as is allowed and useful. Returns the limit now in force.
pub fn raise() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let wanted = hard.min(WANTED);
    if soft < wanted
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)
    {
        tracing::debug!(%error, "the limit of file descriptors stays {soft}");
    }
    limit()
}

/// The limit as it is.
#[must_use]
pub fn limit() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(soft).unwrap_or(usize::MAX)
}

/// Tables that the log may keep open, of so many descriptors.
#[must_use]
pub fn store_tables(limit: usize) -> usize {
    let (least, most) = STORE_TABLES;
    (limit / STORE_SHARE).clamp(least, most)
}

/// Connections that clients may have open, of so many descriptors.
#[must_use]
pub fn connections(limit: usize, workers: usize, servers: usize) -> usize {
    let reserved = [
        RESERVED_FOR_PROCESS,
        RESERVED_FOR_STORE,
        store_tables(limit),
        workers.saturating_mul(RESERVED_FOR_WORKER),
        servers.saturating_mul(RESERVED_FOR_SERVER),
    ];
    let left = reserved.iter().fold(limit, |left, part| left.saturating_sub(*part));
    (left / 2).max(MIN_CONNECTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_half_of_what_the_log_and_the_servers_leave() {
        for (limit, workers, servers, connections_of_clients, tables) in [
            (0, 1, 0, MIN_CONNECTIONS, 24),
            (128, 2, 1, 10, 24),
            (256, 2, 1, 70, 32),
            (256, 8, 10, 40, 32),
            (1024, 2, 1, 406, 128),
            (65_536, 2, 10, 32_258, 900),
            (usize::MAX, usize::MAX, usize::MAX, MIN_CONNECTIONS, 900),
        ] {
            assert_eq!(connections(limit, workers, servers), connections_of_clients, "{limit}");
            assert_eq!(store_tables(limit), tables, "{limit}");
        }
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_goes() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let reachable = usize::try_from(hard.min(WANTED)).unwrap();
        assert!(raise() >= reachable);
        assert_eq!(limit(), raise(), "it is not lowered");
    }
}
