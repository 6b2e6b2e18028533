//! The keyspaces of the log's database, and which of them can be made anew.

/// A keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// First sequence number → block of heads.
    Heads,
    /// First sequence number → block of bodies.
    Bodies,
    /// Term, segment → posting; full segments only.
    Index,
    /// Segment → bounds; full segments only.
    Segments,
    /// Bucket, segment → counters; full segments only.
    Stats,
    /// What the log has one of: format, node, first record; and the marks of calls under way.
    State,
}

impl Space {
    pub(super) const ALL: [Self; 6] =
        [Self::Heads, Self::Bodies, Self::Index, Self::Segments, Self::Stats, Self::State];

    /// Those that can be made anew from the records.
    pub(super) const DERIVED: [Self; 3] = [Self::Index, Self::Segments, Self::Stats];

    /// The name of its folder: keyspaces are numbered in the order in which they are made, which is
    /// that of [`Self::ALL`]. The first number is that of fjall's own.
    pub(super) const fn folder(self) -> &'static str {
        match self {
            Self::Heads => "1",
            Self::Bodies => "2",
            Self::Index => "3",
            Self::Segments => "4",
            Self::Stats => "5",
            Self::State => "6",
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Heads => "heads",
            Self::Bodies => "bodies",
            Self::Index => "index",
            Self::Segments => "segments",
            Self::Stats => "stats",
            Self::State => "state",
        }
    }
}
