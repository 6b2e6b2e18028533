//! How sensitive data is: the words of intents and operators, their order, and what servers hint.

use serde::{Deserialize, Deserializer, Serialize};

/// How sensitive data is: `intent.data_sensitivity` (FR-009), and of a tool what it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sensitivity {
    /// Anyone may see it.
    Public,
    /// For the organisation.
    Internal,
    /// For few.
    Private,
    /// The agent cannot tell.
    Unknown,
}

impl Sensitivity {
    /// The sensitivity of that name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "public" => Self::Public,
            "internal" => Self::Internal,
            "private" => Self::Private,
            "unknown" => Self::Unknown,
            _ => return None,
        })
    }

    /// Its place among the others, from 1: what is not known is above what anyone may see, and below the rest.
    #[must_use]
    pub const fn rank(self) -> u8 {
        match self {
            Self::Public => 1,
            Self::Unknown => 2,
            Self::Internal => 3,
            Self::Private => 4,
        }
    }

    /// The sensitivity of that rank.
    #[must_use]
    pub const fn of_rank(rank: u8) -> Option<Self> {
        Some(match rank {
            1 => Self::Public,
            2 => Self::Unknown,
            3 => Self::Internal,
            4 => Self::Private,
            _ => return None,
        })
    }

    /// The higher of the two.
    #[must_use]
    pub fn higher(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let rank = |it: Option<Self>| it.map_or(0, Self::rank);
        if rank(one) >= rank(other) { one } else { other }
    }
}

/// `sensitiveHint` (SEP-1913). A word that is not known says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "each is its word")]
pub enum SensitiveHint {
    Low,
    Medium,
    High,
}

/// The hint, or nothing where a server writes something else there.
pub(super) fn lenient<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<SensitiveHint>, D::Error> {
    let hint = Option::<serde_json::Value>::deserialize(from)?;
    Ok(match hint.as_ref().and_then(serde_json::Value::as_str) {
        Some("low") => Some(SensitiveHint::Low),
        Some("medium") => Some(SensitiveHint::Medium),
        Some("high") => Some(SensitiveHint::High),
        Some(_) | None => None,
    })
}

/// The same of `privateHint`.
pub(super) fn lenient_bool<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    let hint = Option::<serde_json::Value>::deserialize(from)?;
    Ok(hint.as_ref().and_then(serde_json::Value::as_bool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sensitivities_have_an_order() {
        for rank in 0..6 {
            assert!(Sensitivity::of_rank(rank).is_none_or(|it| it.rank() == rank));
        }
        let (public, private) = (Some(Sensitivity::Public), Some(Sensitivity::Private));
        assert_eq!(Sensitivity::higher(public, private), private);
        assert_eq!(Sensitivity::higher(private, public), private);
        assert_eq!(Sensitivity::higher(None, public), public);
    }
}
