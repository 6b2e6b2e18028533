//! Keywords that are numbers which bound: lengths, counts, magnitudes. Pure.

use serde_json::{Map, Number, Value};

use super::relation::{Relation, both};

/// Keywords that hold a document back more the smaller, or the larger, they are.
const BOUNDS: [(&str, Side); 10] = [
    ("maximum", Side::AtMost),
    ("maxLength", Side::AtMost),
    ("maxItems", Side::AtMost),
    ("maxProperties", Side::AtMost),
    ("minimum", Side::AtLeast),
    ("minLength", Side::AtLeast),
    ("minItems", Side::AtLeast),
    ("minProperties", Side::AtLeast),
    // Draft 4 has true and false for these two, which are compared to the letter.
    ("exclusiveMaximum", Side::AtMost),
    ("exclusiveMinimum", Side::AtLeast),
];

/// Whether a keyword is a bound.
pub(super) fn is_bound(name: &str) -> bool {
    BOUNDS.iter().any(|(bound, _)| *bound == name)
}

#[derive(Clone, Copy)]
enum Side {
    AtMost,
    AtLeast,
}

/// How the bounds of `now` relate to those of `before`.
pub(super) fn bounds(before: &Map<String, Value>, now: &Map<String, Value>) -> Relation {
    let mut relation = Relation::Equal;
    for (name, side) in BOUNDS {
        let shown = match (before.get(name), now.get(name)) {
            (old, new) if old == new => Relation::Equal,
            (None, Some(Value::Number(_))) => Relation::Narrower,
            (Some(Value::Number(old)), Some(Value::Number(new))) => {
                let (least, most) = match side {
                    Side::AtMost => (new, old),
                    Side::AtLeast => (old, new),
                };
                if is_at_most(least, most) { Relation::Narrower } else { Relation::Wider }
            }
            (_, _) => Relation::Wider,
        };
        relation = both(relation, shown);
    }
    relation
}

/// False where it cannot be told: large whole numbers beside fractions.
fn is_at_most(a: &Number, b: &Number) -> bool {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let whole = |number: &Number| {
        number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
    };
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => a <= b,
        (_, _) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => a <= b && a.abs() < EXACT && b.abs() < EXACT,
            (_, _) => false,
        },
    }
}
