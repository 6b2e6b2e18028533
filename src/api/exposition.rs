//! The two forms in which metrics are told: OpenMetrics 1.0, and Prometheus' text format 0.0.4, made of the former.
//!
//! Which of them a client wants its `Accept` says. They differ where we use them in the name that a counter is described
//! under, which is that of its samples in the older form alone, and in the mark at the end.

use std::collections::HashSet;

use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue};

/// How metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exposition {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

const OPEN_METRICS: &str = "application/openmetrics-text";
const TEXT: &str = "text/plain";

impl Exposition {
    /// The one that the client would rather have. Who takes both alike, or neither, or says nothing, is given OpenMetrics.
    pub(super) fn wanted(headers: &HeaderMap) -> Self {
        let accepts: Vec<&str> =
            headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        let quality = |kind: &str| {
            let (all_of, _) = kind.split_once('/').unwrap_or_default();
            let ranges = [kind, &format!("{all_of}/*"), "*/*"];
            // The most exact one counts.
            ranges.into_iter().find_map(|range| quality(&accepts, range)).unwrap_or_default()
        };
        match quality(TEXT) > quality(OPEN_METRICS) {
            true => Self::Text,
            false => Self::OpenMetrics,
        }
    }

    /// What `Content-Type` says.
    pub(super) const fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        })
    }

    /// This form of what is written as OpenMetrics, in which these are the names of the counters.
    pub(super) fn of(self, text: String, counters: &HashSet<&str>) -> String {
        match self {
            Self::OpenMetrics => text,
            Self::Text => older(&text, counters),
        }
    }
}

/// How much a media range is wanted, in thousandths; `None` where it is not named.
fn quality(accepts: &[&str], range: &str) -> Option<u16> {
    let named = accepts.iter().flat_map(|accept| accept.split(',')).filter_map(|one| {
        let mut parts = one.split(';').map(str::trim);
        if !parts.next()?.eq_ignore_ascii_case(range) {
            return None;
        }
        let weight = parts.find_map(|it| it.strip_prefix("q=").or_else(|| it.strip_prefix("Q=")));
        Some(weight.map_or(1000, |weight| thousandths(weight).unwrap_or_default()))
    });
    named.max()
}

fn thousandths(weight: &str) -> Option<u16> {
    let (whole, parts) = weight.split_once('.').unwrap_or((weight, ""));
    let digits = parts.len() <= 3 && parts.bytes().all(|byte| byte.is_ascii_digit());
    let parts: u16 = digits.then(|| format!("{parts:0<3}"))?.parse().ok()?;
    let sum = whole.parse::<u16>().ok()?.checked_mul(1000)?.checked_add(parts)?;
    (sum <= 1000).then_some(sum)
}

/// Prometheus' text format of what is written as OpenMetrics.
fn older(text: &str, counters: &HashSet<&str>) -> String {
    let mut older = String::with_capacity(text.len() + 2048);
    for line in text.split_inclusive('\n') {
        if line == "# EOF\n" {
            continue;
        }
        let described = ["# HELP ", "# TYPE "].into_iter().find_map(|word| {
            let (name, rest) = line.strip_prefix(word)?.split_once(' ')?;
            counters.contains(name).then_some((word, name, rest))
        });
        match described {
            Some((word, name, rest)) => older.extend([word, name, "_total ", rest]),
            None => older.push_str(line),
        }
    }
    older
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_the_one_that_the_client_would_rather_have() {
        use Exposition::{OpenMetrics, Text};
        // As Prometheus 2.53 and 3 ask.
        const TWO: &str = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        const THREE: &str = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.3";
        for (accepts, expected) in [
            (&[][..], OpenMetrics),
            (&["*/*"], OpenMetrics),
            (&["text/plain"], Text),
            (&["TEXT/PLAIN ; version=0.0.4"], Text),
            (&["text/*"], Text),
            (&["text/plain;version=0.0.4;q=0.3, application/openmetrics-text"], OpenMetrics),
            (&["application/openmetrics-text;q=0.2", "text/plain;q=0.25"], Text),
            (&["application/openmetrics-text;q=0, */*;q=0.1"], Text),
            (&["text/plain;q=0"], OpenMetrics),
            (&["text/plain;q=nonsense"], OpenMetrics),
            (&["text/plain;q=9.9"], OpenMetrics),
            (&["application/json"], OpenMetrics),
            (&[TWO], OpenMetrics),
            (&[THREE], OpenMetrics),
        ] {
            let mut headers = HeaderMap::new();
            for accept in accepts {
                headers.append(ACCEPT, HeaderValue::from_static(accept));
            }
            assert_eq!(Exposition::wanted(&headers), expected, "{accepts:?}");
        }
    }

    #[test]
    fn counters_are_described_by_the_name_of_their_samples_in_the_older_form() {
        let text = "# HELP a What a is\n# TYPE a counter\na_total{x=\"# TYPE a \\n\"} 1\n\
            # HELP ab a\n# TYPE ab gauge\nab 2.0\n# EOF\n";
        let expected = "# HELP a_total What a is\n# TYPE a_total counter\na_total{x=\"# TYPE a \\n\"} 1\n\
            # HELP ab a\n# TYPE ab gauge\nab 2.0\n";
        let counters = HashSet::from(["a"]);
        assert_eq!(Exposition::Text.of(text.to_owned(), &counters), expected);
        assert_eq!(Exposition::OpenMetrics.of(text.to_owned(), &counters), text);
    }
}
