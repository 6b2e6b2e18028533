//! File descriptor budget: raises the limit and divides it.
//!
//! The log and the upstreams have priority over clients' connections, because the log fails if it cannot open a file.
//! The listener gets half of the rest, because each connection may have a call that needs another connection to an
//! upstream.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Largest limit that this program can use. It is bounded because children inherit the limit, and some of them do work
/// for each possible descriptor.
const WANTED: u64 = 65_536;
/// Descriptors for the standard streams, signals, the listener, and occasional files.
const RESERVED_FOR_PROCESS: usize = 32;
/// Descriptors for a worker thread's event queue and its waker.
const RESERVED_FOR_WORKER: usize = 4;
/// Descriptors for the log's journals, lock files and head, and the tables written during compaction.
const RESERVED_FOR_STORE: usize = 40;
/// Minimum and maximum number of tables that the log keeps open for reading.
const STORE_TABLES: (usize, usize) = (24, 900);
/// Divisor of all descriptors that yields the share of the log's tables.
const STORE_SHARE: usize = 8;
/// Descriptors per server: the pipes of a child, or connections for discovery and for unsolicited messages.
const RESERVED_FOR_SERVER: usize = 4;
/// Minimum number of client connections, regardless of the limit.
const MIN_CONNECTIONS: usize = 8;

/// Raises the limit as far as allowed and useful. Returns the limit in force afterward.
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

pub fn limit() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(soft).unwrap_or(usize::MAX)
}

/// Number of tables that the log may keep open, for a limit of `limit` descriptors.
pub fn store_tables(limit: usize) -> usize {
    let (min, max) = STORE_TABLES;
    (limit / STORE_SHARE).clamp(min, max)
}

/// Number of connections that clients may have open, for a limit of `limit` descriptors.
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
    fn connections_get_half_of_what_the_log_and_servers_leave() {
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
    fn raising_the_limit_never_lowers_it() {
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let reachable = usize::try_from(hard.min(WANTED)).unwrap();
        assert!(raise() >= reachable);
        assert_eq!(limit(), raise(), "the limit is not lowered");
    }
}
