//! The worst case over a schema's graph: visits to one value, by its depth, and how deep they nest.

use super::graph::{Graph, Sub};
use crate::json::tape::MAX_DEPTH;

/// The worst case of a schema, by depth of the value in the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Most visits that one value at this depth can get.
    visits: Vec<u64>,
    /// Most visits that are open at the same time while a value at this depth is visited.
    nesting: Vec<u64>,
    /// Depths that are known. Those beyond the last number are as that: most schemas end early.
    depths: usize,
}

impl Cost {
    /// Most visits that a value at `depth` can get.
    #[must_use]
    pub fn visits(&self, depth: usize) -> u64 {
        self.at(&self.visits, depth)
    }

    /// Most visits open at once in a document of `depth`.
    #[must_use]
    pub fn nesting(&self, depth: usize) -> u64 {
        self.at(&self.nesting, depth)
    }

    fn at(&self, numbers: &[u64], depth: usize) -> u64 {
        let known = numbers.get(depth).or(numbers.last()).filter(|_| depth < self.depths);
        known.copied().unwrap_or(u64::MAX)
    }
}

/// What a reference that leaves the schema costs: it can only lead into a standard meta-schema,
/// whose vocabularies share no property.
pub(super) const META_SCHEMA_VISITS: u64 = 64;

/// The subschemas in an order in which each comes after those it applies to the same value.
struct Order {
    subs: Vec<usize>,
    /// Some of them come back to themselves on the same value.
    circular: bool,
}

impl Graph<'_> {
    /// Most visits that the schema, or any part of it, can pay to a single value; `u64::MAX`
    /// where branching cycles leave no bound.
    #[must_use]
    pub fn expansion(&self) -> u64 {
        let Some(order) = self.order() else { return u64::MAX };
        let mut visits = vec![0; self.subs.len()];
        for at in order.subs {
            self.visit_here(at, &mut visits);
        }
        visits.into_iter().max().unwrap_or(0)
    }

    /// Most visits and matches that the schema pays to one name of an object.
    #[must_use]
    pub fn name_visits(&self) -> u64 {
        let Some(order) = self.order() else { return u64::MAX };
        let mut visits = vec![0; self.subs.len()];
        for at in order.subs {
            self.visit_here(at, &mut visits);
        }
        let names = self.names.iter().map(|&sub| get(&visits, sub));
        names.fold(self.named_patterns, u64::saturating_add)
    }

    /// True when a reference may come back to itself on the same value. What that means no
    /// specification says, so that one engine has to decide it.
    #[must_use]
    pub fn is_circular(&self) -> bool {
        self.order().is_none_or(|order| order.circular)
    }

    /// The worst case for documents of every depth.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let count = self.subs.len();
        let mut cost = Cost { visits: Vec::new(), nesting: Vec::new(), depths: 0 };
        let Some(Order { subs: order, .. }) = self.order() else { return cost };
        let (mut visits, mut nesting) = (vec![0; count], vec![0; count]);
        for &at in &order {
            self.visit_here(at, &mut visits);
            let deepest = self.most(at, &nesting);
            set(&mut nesting, at, deepest + 1 + self.leaving(at));
        }
        cost.visits.push(get(&visits, 0));
        cost.nesting.push(get(&nesting, 0));
        cost.depths = 1 + MAX_DEPTH;
        for _ in 0..MAX_DEPTH {
            let (above, mut below) = (visits, vec![0; count]);
            let (open_above, mut open_below) = (nesting, vec![0; count]);
            for &at in &order {
                let Some(sub) = self.subs.get(at) else { continue };
                let child = self.visit_child(sub, &above);
                let all = self.all(at, &below).saturating_add(child);
                set(&mut below, at, all);
                let open = sub.children().map(|c| get(&open_above, c)).max().unwrap_or(0);
                let deepest = open.max(self.most(at, &open_below));
                let leaving = self.leaving(at);
                set(
                    &mut open_below,
                    at,
                    if deepest + leaving > 0 { deepest + 1 + leaving } else { 0 },
                );
            }
            let settled = below == above && open_below == open_above;
            (visits, nesting) = (below, open_below);
            let deepest = get(&nesting, 0).max(cost.nesting.last().copied().unwrap_or(0));
            cost.visits.push(get(&visits, 0));
            cost.nesting.push(deepest);
            if settled {
                break;
            }
        }
        cost.visits.shrink_to_fit();
        cost.nesting.shrink_to_fit();
        cost
    }

    fn visit_here(&self, at: usize, visits: &mut [u64]) {
        let extra = self.subs.get(at).map_or(0, |sub| sub.extra);
        let own = extra + if self.leaving(at) > 0 { META_SCHEMA_VISITS } else { 1 };
        let all = self.all(at, visits).saturating_add(own);
        set(visits, at, all);
    }

    fn visit_child(&self, sub: &Sub, above: &[u64]) -> u64 {
        let sum = |subs: &[usize]| {
            subs.iter().fold(0_u64, |sum, &sub| sum.saturating_add(get(above, sub)))
        };
        let max = |subs: &[usize]| subs.iter().map(|&sub| get(above, sub)).max().unwrap_or(0);
        let member = max(&sub.properties)
            .saturating_add(sum(&sub.patterns))
            .max(sum(&sub.rest))
            .saturating_add(sum(&sub.members));
        let item = max(&sub.positions).saturating_add(sum(&sub.items));
        let own = if sub.leaves { META_SCHEMA_VISITS } else { 0 };
        member.max(item).saturating_add(own)
    }

    fn here(&self, at: usize) -> &[usize] {
        self.subs.get(at).map_or(&[], |sub| &sub.here)
    }

    fn leaving(&self, at: usize) -> u64 {
        const META_SCHEMA_NESTING: u64 = 8;
        if self.subs.get(at).is_some_and(|sub| sub.leaves) { META_SCHEMA_NESTING } else { 0 }
    }

    fn all(&self, at: usize, of: &[u64]) -> u64 {
        self.here(at).iter().fold(0, |sum, &next| sum.saturating_add(get(of, next)))
    }

    fn most(&self, at: usize, of: &[u64]) -> u64 {
        self.here(at).iter().map(|&next| get(of, next)).max().unwrap_or(0)
    }

    /// A simple cycle is cut where it closes. None when a cycle branches: the number of ways
    /// around it has no useful bound.
    fn order(&self) -> Option<Order> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.subs.len()];
        let mut order = Order { subs: Vec::with_capacity(self.subs.len()), circular: false };
        for start in 0..self.subs.len() {
            let mut path = vec![(start, 0)];
            while let Some((at, edge)) = path.last_mut() {
                let at = *at;
                let mark = marks.get_mut(at)?;
                if *edge == 0 {
                    if *mark != Mark::New {
                        path.pop();
                        continue;
                    }
                    *mark = Mark::Open;
                }
                if let Some(&next) = self.here(at).get(*edge) {
                    *edge += 1;
                    match marks.get(next)? {
                        Mark::New => path.push((next, 0)),
                        Mark::Done => {}
                        Mark::Open => {
                            order.circular = true;
                            // From the end: the cycle, not what leads to it.
                            let from = path.iter().rposition(|(sub, _)| *sub == next)?;
                            let ways = path.iter().skip(from).map(|(sub, _)| self.here(*sub).len());
                            if ways.max() > Some(1) {
                                return None;
                            }
                        }
                    }
                } else {
                    set(&mut marks, at, Mark::Done);
                    order.subs.push(at);
                    path.pop();
                }
            }
        }
        Some(order)
    }
}

fn get(of: &[u64], at: usize) -> u64 {
    of.get(at).copied().unwrap_or(0)
}

fn set<T>(of: &mut [T], at: usize, to: T) {
    if let Some(slot) = of.get_mut(at) {
        *slot = to;
    }
}
