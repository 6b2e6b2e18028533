//! Quality of a ranking: recall, MRR, nDCG, the number of unanswerable questions with an empty answer, and the number
//! of reading questions for which a destructive tool is ranked first.
//!
//! Recall at k is the share of questions for which an intended tool (grade 2) is among the first k. One such tool is
//! enough, so a question with several intended tools is not harder than one with a single tool. nDCG takes both grades
//! into account.

use std::collections::BTreeMap;

use crate::golden::{Effect, Question};

/// Number of ranks that nDCG takes into account.
const DEPTH: usize = 10;

/// Sums over the questions.
#[derive(Clone, Default)]
pub(crate) struct Sums {
    answerable: u32,
    at: [u32; 3],
    reciprocal: f64,
    gain: f64,
    unanswerable: u32,
    said: u32,
    /// Number of questions that only ask to read something.
    reading: u32,
    destructive_first: u32,
    /// Number of tools in the answers.
    returned: usize,
}

impl Sums {
    /// Counts one question with the names found for it, best first.
    pub(crate) fn count(
        &mut self,
        question: &Question,
        right: &BTreeMap<&str, u32>,
        found: &[String],
        destructive: impl Fn(&str) -> bool,
    ) {
        self.returned += found.len();
        if question.effect == Effect::Read {
            self.reading += 1;
            self.destructive_first +=
                u32::from(found.first().is_some_and(|name| destructive(name)));
        }
        if right.is_empty() {
            self.unanswerable += 1;
            self.said += u32::from(found.is_empty());
            return;
        }
        self.answerable += 1;
        let grades: Vec<u32> =
            found.iter().map(|name| right.get(&**name).copied().unwrap_or_default()).collect();
        if let Some(place) = grades.iter().position(|grade| *grade == 2) {
            for (sum, within) in self.at.iter_mut().zip([1, 3, 5]) {
                *sum += u32::from(place < within);
            }
            self.reciprocal += 1.0 / (place + 1) as f64;
        }
        let mut best: Vec<u32> = right.values().copied().collect();
        best.sort_unstable_by(|a, b| b.cmp(a));
        self.gain += gain(&grades) / gain(&best);
    }

    pub(crate) fn head() -> &'static str {
        "| set | questions | recall@1 | @3 | @5 | MRR | nDCG@10 | unanswerable, left empty | destructive first | tools returned |\n|---|---|---|---|---|---|---|---|---|---|"
    }

    pub(crate) fn row(&self, name: &str) -> String {
        let share = |sum: f64| match self.answerable {
            0 => "–".to_owned(),
            all => format!("{:.3}", sum / f64::from(all)),
        };
        let [one, three, five] = self.at.map(|sum| share(f64::from(sum)));
        let asked = self.answerable + self.unanswerable;
        format!(
            "| {name} | {asked} | {one} | {three} | {five} | {} | {} | {}/{} | {}/{} | {:.1} |",
            share(self.reciprocal),
            share(self.gain),
            self.said,
            self.unanswerable,
            self.destructive_first,
            self.reading,
            self.returned as f64 / f64::from(asked.max(1)),
        )
    }

    /// Whether, for a question so far, the first tool was not an intended one.
    pub(crate) fn missed(&self) -> bool {
        self.at.first().is_some_and(|first| *first < self.answerable)
            || self.said < self.unanswerable
    }

    /// Whether, for a reading question so far, the first tool was a destructive one.
    pub(crate) fn destroys_first(&self) -> bool {
        self.destructive_first > 0
    }
}

fn gain(grades: &[u32]) -> f64 {
    let discounted = |(place, grade): (usize, &u32)| {
        (f64::from(*grade).exp2() - 1.0) / ((place + 2) as f64).log2()
    };
    grades.iter().take(DEPTH).enumerate().map(discounted).sum()
}
