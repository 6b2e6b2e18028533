//! What a reader of `/events` is told of a fleet's other nodes, and where it resumes.
//!
//! In a fleet a reader is at a place in the log of each node (`fleet::watch_place`). The last event of each portion has it as its
//! `id`, and the others have none: a reader that resumes gets what comes after that portion of each log, whatever it was told of
//! other nodes meanwhile, so that nothing is left out of a node that is behind, or did not answer.

use std::sync::Arc;

use bytes::Bytes;

use super::reader_limits::event;
use crate::activity::Id;
use crate::fleet::fleet_watch::OVERLAP_MS;
use crate::fleet::watch_place::WatchPlace;
use crate::fleet::{FleetNode, FleetWatch, WatchNews};

/// What the line of an event's id begins with.
const ID: &[u8] = b"id: ";

/// What a reader that comes back has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LastSeen {
    /// A record, and those before it.
    Record(Id),
    /// What is before a place in a fleet.
    Place(WatchPlace),
}

/// Where this node's own log is gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnStart {
    /// After this record; where it is not of this log, at its time and a little before.
    Record(Id),
    /// After the record with this number.
    Number(u64),
    /// With what was stored at this time, in milliseconds since 1970.
    Time(u64),
}

impl LastSeen {
    /// Reads what a reader has sent; a place, where there is a fleet.
    pub(super) fn parse(text: &str, in_fleet: bool) -> Option<Self> {
        let place = || WatchPlace::parse(text).filter(|_| in_fleet).map(Self::Place);
        Id::parse(text).map(Self::Record).or_else(place)
    }

    pub(super) fn record(&self) -> Option<Id> {
        match self {
            Self::Record(id) => Some(*id),
            Self::Place(_) => None,
        }
    }

    /// Where the log of the node of that name is gone on with, which is this one.
    pub(super) fn in_log_of(&self, own: &str) -> OwnStart {
        match self {
            Self::Record(id) => OwnStart::Record(*id),
            Self::Place(place) => {
                place.after(own).map_or(OwnStart::Time(place.begins()), OwnStart::Number)
            }
        }
    }
}

/// The other nodes, as one reader watches them, and where it is.
#[derive(Debug)]
pub(super) struct WatchedFleet {
    watch: FleetWatch,
    place: WatchPlace,
    /// This node's name, unless its records are passed over since another node's are meant.
    own: Option<String>,
}

impl WatchedFleet {
    /// Watches the fleet of `node` after what was seen, or from `now` on (milliseconds since 1970); of it the node `other` alone, if
    /// one is given. `own`: after which number this node's own records come. `None` where no other node can be asked.
    pub(super) fn begin(
        node: &Arc<FleetNode>,
        other: Option<String>,
        seen: Option<LastSeen>,
        (own, now): (u64, u64),
    ) -> Option<Self> {
        let mut place = match seen {
            None => WatchPlace::since(now),
            Some(LastSeen::Record(id)) => {
                WatchPlace::since(id.time_ms().saturating_sub(OVERLAP_MS))
            }
            Some(LastSeen::Place(place)) => place,
        };
        let name = node.name.as_str();
        let is_own_meant = other.is_none();
        if is_own_meant {
            // What it says of a log that was here before is not so of this one.
            place.forgets(name);
            place.moves(name, own);
        }
        let watch = FleetWatch::begin(node, other, place.clone())?;
        Some(Self { watch, place, own: is_own_meant.then(|| name.to_owned()) })
    }

    /// Where the reader is, with all that it was sent.
    pub(super) fn place(&self) -> &WatchPlace {
        &self.place
    }

    /// This node's own records are not meant.
    pub(super) fn passes_own(&self) -> bool {
        self.own.is_none()
    }

    /// The next news of other nodes; never without any. Dropped before its end, it has taken nothing.
    pub(super) async fn next(&mut self) -> WatchNews {
        match self.watch.next().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// Events of this node's records up to that number, as they are sent in a fleet.
    pub(super) fn of_own(&mut self, events: &[u8], last: u64) -> Bytes {
        if let Some(own) = &self.own {
            self.place.moves(own, last);
        }
        placed(events, &self.place)
    }

    /// What another node's news are for the reader; `None` where there is nothing to be said.
    pub(super) fn told(&mut self, news: WatchNews) -> Option<Bytes> {
        let (name, told) = match news {
            WatchNews::Records(node, last, records) => {
                self.place.moves(&node, last);
                let mut events = Vec::new();
                records.iter().for_each(|record| event(record, &mut events));
                return (!events.is_empty()).then(|| placed(&events, &self.place));
            }
            WatchNews::Missing(node, why) => {
                ("missing", serde_json::json!({"node": node, "reason": why}))
            }
            WatchNews::Back(node) => ("back", serde_json::json!({"node": node})),
            WatchNews::Removed(node, first, last) => {
                let gone = serde_json::json!({
                    "node": node, "first": first, "last": last, "reason": "retention"
                });
                ("removed", gone)
            }
        };
        Some(format!("event: {name}\ndata: {told}\n\n").into())
    }
}

/// The events of a portion with one id in place of theirs, which the last of them has.
fn placed(events: &[u8], place: &WatchPlace) -> Bytes {
    let (mut out, mut last) = (Vec::with_capacity(events.len()), None);
    for line in events.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(ID) {
            last = Some(out.len());
        } else {
            out.extend_from_slice(line);
        }
    }
    if let Some(last) = last {
        let id = format!("id: {place}\n");
        out.splice(last..last, id.into_bytes());
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_in_a_fleet_comes_back_with_a_place_or_a_record_and_elsewhere_with_a_record() {
        let id = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
        let record = LastSeen::Record(Id::parse(id).unwrap());
        for in_fleet in [false, true] {
            assert_eq!(LastSeen::parse(id, in_fleet), Some(record.clone()));
            assert_eq!(LastSeen::parse("nonsense", in_fleet), None);
        }
        let place = LastSeen::parse("12;a=3;b=4", true).unwrap();
        assert_eq!(LastSeen::parse("12;a=3;b=4", false), None);
        assert_eq!(
            (record.in_log_of("a"), record.record()),
            (OwnStart::Record(Id::parse(id).unwrap()), Id::parse(id))
        );
        let starts = ["a", "b", "c"].map(|node| place.in_log_of(node));
        assert_eq!(starts, [OwnStart::Number(3), OwnStart::Number(4), OwnStart::Time(12)]);
        assert_eq!(place.record(), None);
    }

    #[test]
    fn the_last_event_of_a_portion_alone_has_an_id_which_is_the_place() {
        let mut place = WatchPlace::since(12);
        place.moves("a", 3);
        let one = b"id: X\nevent: activity\ndata: {\"id: \":1}\n\n";
        let removed = b"event: removed\ndata: {}\n\n";
        let two = [&removed[..], one, one].concat();
        let text = "event: removed\ndata: {}\n\nevent: activity\ndata: {\"id: \":1}\n\nid: 12;a=3\nevent: activity\ndata: {\"id: \":1}\n\n";
        assert_eq!(placed(&two, &place), text.as_bytes());
        assert_eq!(placed(removed, &place), &removed[..]);
        assert_eq!(placed(b"", &place), &b""[..]);
    }
}
