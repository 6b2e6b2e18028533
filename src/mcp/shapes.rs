//! Which members MCP's messages have, and the same messages without any other.
//!
//! A server may read what we do not: one that ignores case (Go's `encoding/json`) takes `Name` for
//! `name`. So nothing crosses a hop but the members that the method has by the sender's revision
//! (`table`); a name that differs from one of these only by case is refused. `arguments` of tools
//! and prompts, texts, schemas and the values of `_meta` are between client and server and pass
//! verbatim. No extension is declared to clients, so none can be negotiated that would add members.
//! Pure; refusals and warnings are reported by the callers.

mod shape;
mod sift;
mod table;

pub use self::shape::{Known, MemberMatch, Shape, find};
pub use self::sift::{
    Edit, Left, MAX_NAME_CHARS, MemberRefused, check_free, knows, message, sift, sift_value,
};
pub use self::table::{ENVELOPE, META_KEYS, REQUEST, TOOLS_CALL, error, params, result};
