//! Reasons of refusals for people: the rule or limit that decided comes first, so that a narrow column still shows its name.
//!
//! The texts of refusals are a contract, and records keep them. Names of tools and URIs in them are chosen by servers and agents, so
//! that a text in which the words of a refusal occur twice is left as it is.

/// Words before the name of a rule, in the text of a refusal.
const BY_RULE: &str = "is not allowed by rule '";
/// Words before the name of a limit.
const TOO_MANY: &str = "Too many calls to '";

/// A refusal, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NamedReason<'r> {
    /// The rule, or what is limited.
    name: &'r str,
    kind: &'static str,
    /// The rest of the text, which may be empty.
    rest: String,
}

impl<'r> NamedReason<'r> {
    /// Takes the text of a refusal apart; `None` if no rule or limit decided.
    pub(super) fn of(reason: &'r str) -> Option<Self> {
        by_rule(reason).or_else(|| by_limit(reason))
    }

    /// The text with the name first. Qualifiers follow the kind: a status, or the number of refusals.
    pub(super) fn text(&self, qualifiers: &[String]) -> String {
        let Self { name, kind, rest } = self;
        let qualifiers: String = qualifiers.iter().map(|it| format!(", {it}")).collect();
        format!("{name} ({kind}{qualifiers}): {rest}").trim_end_matches([':', ' ']).to_owned()
    }
}

/// A text such as `Resource 's:URI' is not allowed by rule 'NAME': MESSAGE`.
fn by_rule(reason: &str) -> Option<NamedReason<'_>> {
    let (access, rest) = reason.split_once(BY_RULE)?;
    if !access.is_empty() && rest.contains(BY_RULE) {
        return None;
    }
    let ends = rest.match_indices('\'').map(|(at, _)| rest.split_at(at));
    let (name, message) =
        ends.filter_map(|(name, after)| Some((name, after.strip_prefix('\'')?))).find(
            |(_, after)| after.is_empty() || [": ", "; "].iter().any(|it| after.starts_with(it)),
        )?;
    let parts = [access, message.trim_start_matches([':', ';'])].map(str::trim);
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Some(NamedReason { name, kind: "rule", rest: parts.join(": ") })
}

/// A text such as `Too many calls to 'NAME': limit 60 per minute, retry in 12s`.
fn by_limit(reason: &str) -> Option<NamedReason<'_>> {
    let of = reason.strip_prefix(TOO_MANY)?;
    let (name, rest) = match of.split_once("' at a time: limit ") {
        Some((name, limit)) => {
            let (limit, more) = limit.split_once(',').unwrap_or((limit, ""));
            let comma = if more.is_empty() { "" } else { "," };
            (name, format!("{limit} at a time{comma}{more}"))
        }
        None => of.split_once("': limit ").map(|(name, limit)| (name, limit.to_owned()))?,
    };
    Some(NamedReason { name, kind: "limit", rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_or_limit_comes_first() {
        for (reason, expected) in [
            ("is not allowed by rule 'no-deletes'", Some("no-deletes (rule)")),
            ("is not allowed by rule 'no-deletes': ask ann", Some("no-deletes (rule): ask ann")),
            ("is not allowed by rule 'ann's': no: never", Some("ann's (rule): no: never")),
            (
                "is not allowed by rule 'r'; allowed, because policy.mode is shadow",
                Some("r (rule): allowed, because policy.mode is shadow"),
            ),
            (
                "Resource 's:file:///x' is not allowed by rule 'no-x': ask ann",
                Some("no-x (rule): Resource 's:file:///x': ask ann"),
            ),
            (
                "Too many calls to 'token:ci': limit 60 per minute, retry in 12s",
                Some("token:ci (limit): 60 per minute, retry in 12s"),
            ),
            (
                "Too many calls to 'all servers' at a time: limit 4, queue 16; none was free within 2m",
                Some("all servers (limit): 4 at a time, queue 16; none was free within 2m"),
            ),
            ("Too many calls to 's' at a time: limit 4", Some("s (limit): 4 at a time")),
            ("approval was denied", None),
            ("Too many calls to nobody", None),
            ("is not allowed by rule 'unfinished", None),
        ] {
            let named = NamedReason::of(reason).map(|named| named.text(&[]));
            assert_eq!(named.as_deref(), expected, "{reason}");
        }
        let named = NamedReason::of("is not allowed by rule 'r': why").unwrap();
        let qualifiers = ["warning".to_owned(), "9 times".to_owned()];
        assert_eq!(named.text(&qualifiers), "r (rule, warning, 9 times): why");
    }

    #[test]
    fn name_in_a_uri_is_not_shown_as_the_rule() {
        let forged =
            "Resource 's:x' is not allowed by rule 'fake': ' is not allowed by rule 'no-x'";
        assert_eq!(NamedReason::of(forged), None);
        // The tool's name was removed before, so that the rule's follows.
        let quoting = "is not allowed by rule 'no-x': it is not allowed by rule 'fake'";
        let named = NamedReason::of(quoting).map(|named| named.name);
        assert_eq!(named, Some("no-x"));
    }
}
