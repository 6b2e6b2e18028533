//! What waits: the call as a person has to judge it.

use std::fmt;
use std::sync::Arc;

use crate::intent::Operation;
use crate::policy::PendingApproval;

/// Random bytes of an id; nobody guesses the id of an approval that they were not told of.
const ID_BYTES: usize = 10;
/// Digits that cannot be taken for one another.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// What stands in an id between its own characters and those that say on which node of a fleet the call waits.
const OF_NODE: char = '-';

/// The id of one approval: 16 letters and digits; in a fleet with `-` and those of the node behind them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ApprovalId(Arc<str>);

impl ApprovalId {
    /// A new one, of a call that waits on that node; `None` if the system gives no randomness.
    pub(super) fn fresh(node: Option<&str>) -> Option<Self> {
        let mut random = [0_u8; ID_BYTES];
        getrandom::fill(&mut random).ok()?;
        let bits = random.iter().fold(0_u128, |bits, byte| (bits << 8) | u128::from(*byte));
        let digit = |at: usize| DIGITS.get((bits >> (5 * at)) as usize & 31).copied();
        let digits = (0..ID_BYTES * 8 / 5).filter_map(digit).map(char::from);
        let mut id: String = digits.collect();
        if let Some(node) = node {
            id.push(OF_NODE);
            id.push_str(node);
        }
        Some(Self(id.into()))
    }

    /// What stands in an id for the node of a fleet on which the call waits, as [`Room::of_node`](super::Room::of_node) was
    /// given it; `None` of one that was made without a fleet.
    #[must_use]
    pub fn node_in(id: &str) -> Option<&str> {
        id.split_once(OF_NODE).map(|(_, node)| node)
    }

    /// The id that is written so, whether or not there is such an approval.
    pub(super) fn of_text(text: &str) -> Self {
        Self(text.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A call that needs approval, as it is shown to whoever may give it.
#[derive(Clone, Debug)]
pub struct AskedCall {
    /// What it is bound to.
    pub pending: PendingApproval,
    /// By which operation it is called, where it calls a tool.
    pub operation: Option<Operation>,
    /// The call, or the tool, may destroy something.
    pub destructive: bool,
    /// Why, in the caller's words, or empty.
    pub reason: Box<str>,
    /// The arguments as they go to the server: raw JSON, at most
    /// [`MAX_ARGUMENTS_BYTES`](crate::policy::MAX_ARGUMENTS_BYTES).
    pub arguments: Box<str>,
    /// The MCP session, or empty.
    pub session: Box<str>,
    /// The client's name for itself, or empty.
    pub client: Box<str>,
    /// The id of the request, under which its record is found.
    pub request_id: Box<str>,
}

impl AskedCall {
    /// The bytes that are counted for it.
    pub(super) fn bytes(&self) -> usize {
        let texts = [&self.reason, &self.arguments, &self.session, &self.client, &self.request_id];
        texts.iter().map(|text| text.len()).sum::<usize>() + size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_short_and_of_their_own() {
        let ids: std::collections::HashSet<_> =
            (0..1000).filter_map(|_| ApprovalId::fresh(None)).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            assert_eq!(id.as_str().len(), 16);
            assert!(id.as_str().bytes().all(|digit| DIGITS.contains(&digit)));
            assert_eq!(ApprovalId::node_in(id.as_str()), None);
        }
        let id = ApprovalId::fresh(Some("abc0123")).unwrap();
        assert_eq!((id.as_str().len(), ApprovalId::node_in(id.as_str())), (24, Some("abc0123")));
    }
}
