//! `result_limit` of one server and of its tools: how it adds up with that of the root.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::tool::Rules;
use crate::tool::result_limit::{self, ResultLimit};

/// `result_limit` of one server: for all its tools, and by tool name or pattern.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResultLimitRules {
    /// See [`ResultLimit::bytes`].
    #[serde(deserialize_with = "bytes")]
    pub bytes: Option<u64>,
    /// See [`ResultLimit::keep`].
    #[serde(deserialize_with = "keep")]
    pub keep: Option<Duration>,
    /// The same by tool name or pattern.
    pub tools: Rules<ResultLimitOverride>,
}

/// What the operator says of when results are kept back; absent fields are the next layer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ResultLimitOverride {
    /// See [`ResultLimit::bytes`].
    #[serde(deserialize_with = "bytes")]
    pub bytes: Option<u64>,
    /// See [`ResultLimit::keep`].
    #[serde(deserialize_with = "keep")]
    pub keep: Option<Duration>,
}

impl ResultLimitRules {
    /// What counts for the tool called `name`, on top of `base`.
    #[must_use]
    pub fn of(&self, base: ResultLimit, name: &str) -> ResultLimit {
        let server = ResultLimitOverride { bytes: self.bytes, keep: self.keep };
        self.tools.matching(name).fold(server.over(base), |limit, rule| rule.over(limit))
    }

    /// Whether any tool may have a limit here, on top of `base`.
    #[must_use]
    pub fn limit_any(&self, base: ResultLimit) -> bool {
        let some = |bytes: Option<u64>| bytes.is_some_and(|bytes| bytes > 0);
        self.bytes.unwrap_or(base.bytes) > 0 || self.tools.iter().any(|(_, rule)| some(rule.bytes))
    }
}

impl ResultLimitOverride {
    fn over(self, base: ResultLimit) -> ResultLimit {
        ResultLimit {
            bytes: self.bytes.unwrap_or(base.bytes),
            keep: self.keep.unwrap_or(base.keep),
        }
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Stated(#[serde(deserialize_with = "result_limit::bytes")] u64);
    Ok(Option::<Stated>::deserialize(deserializer)?.map(|Stated(bytes)| bytes))
}

fn keep<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    #[derive(Deserialize)]
    struct Stated(#[serde(deserialize_with = "result_limit::keep")] Duration);
    Ok(Option::<Stated>::deserialize(deserializer)?.map(|Stated(keep)| keep))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(json: &str) -> ResultLimitRules {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn limits_add_up_from_the_root_to_server_pattern_and_tool() {
        let base = ResultLimit { bytes: 10_000, keep: Duration::from_secs(7) };
        let rules = rules(
            r#"{"keep": "1m", "tools": {"read_*": {"bytes": 5000}, "read_all": {"bytes": 0, "keep": "2m"}}}"#,
        );
        let of = |name| rules.of(base, name);
        let minute = Duration::from_secs(60);
        assert_eq!(of("write"), ResultLimit { bytes: 10_000, keep: minute });
        assert_eq!(of("read_one"), ResultLimit { bytes: 5000, keep: minute });
        assert_eq!(of("read_all"), ResultLimit { bytes: 0, keep: 2 * minute });
        assert_eq!((of("read_all").limits(), of("write").limits()), (None, Some(of("write"))));
    }

    #[test]
    fn whether_anything_is_limited_counts_every_layer() {
        let (off, on) = (ResultLimit::default(), ResultLimit { bytes: 5000, ..Default::default() });
        for (json, with_off, with_on) in [
            ("{}", false, true),
            (r#"{"bytes": 0}"#, false, false),
            (r#"{"bytes": 5000}"#, true, true),
            (r#"{"tools": {"t": {"keep": "1m"}}}"#, false, true),
            (r#"{"bytes": 0, "tools": {"t": {"bytes": 5000}}}"#, true, true),
        ] {
            let rules = rules(json);
            assert_eq!((rules.limit_any(off), rules.limit_any(on)), (with_off, with_on), "{json}");
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        for (json, fits) in [
            (r#"{"bytes": 4095}"#, false),
            (r#"{"bytes": 4096}"#, true),
            (r#"{"bytes": 0}"#, true),
            (r#"{"bytes": null, "keep": null}"#, true),
            (r#"{"bytes": -1}"#, false),
            (r#"{"keep": "0s"}"#, false),
            (r#"{"keep": "24h"}"#, true),
            (r#"{"keep": "25h"}"#, false),
            (r#"{"keep": 7}"#, false),
            (r#"{"tools": {"t": {"bytes": 1}}}"#, false),
        ] {
            assert_eq!(serde_json::from_str::<ResultLimitRules>(json).is_ok(), fits, "{json}");
        }
    }
}
