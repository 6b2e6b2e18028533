//! What tools mean, as vectors, and which are nearest to a query's.
//!
//! Owns the checked vector and the comparison with all tools, one after the other: at the sizes that there are an index
//! of neighbours would cost more than it saves. Who makes the vectors is not known here.

use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;

use crate::tool::Tool;

/// Most numbers of a vector.
pub const MAX_DIMENSIONS: usize = 4096;

/// Most tools that count as near.
pub const MOST_NEAR: usize = 50;

/// Products that are summed side by side, so that they need not wait for each other.
const LANES: usize = 16;

/// A vector of length 1.
#[derive(Clone, PartialEq)]
pub struct UnitVector(Box<[f32]>);

impl UnitVector {
    /// The direction of a vector; `None` if it has none, has too many dimensions, or holds what is no finite number.
    #[must_use]
    pub fn of(mut numbers: Vec<f32>) -> Option<Self> {
        if !(1..=MAX_DIMENSIONS).contains(&numbers.len()) {
            return None;
        }
        let length = numbers.iter().map(|it| f64::from(*it).powi(2)).sum::<f64>().sqrt();
        if !length.is_finite() || length <= f64::from(f32::MIN_POSITIVE) {
            return None;
        }
        for number in &mut numbers {
            *number = (f64::from(*number) / length) as f32;
        }
        Some(Self(numbers.into()))
    }

    /// Its numbers.
    #[must_use]
    pub fn numbers(&self) -> &[f32] {
        &self.0
    }
}

impl fmt::Debug for UnitVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnitVector({} dimensions)", self.0.len())
    }
}

/// A tool that is near, by its position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// Where it stands among all.
    pub at: usize,
    /// The cosine of the angle between the two vectors.
    pub similarity: f32,
}

/// The vectors of tools, in one piece.
#[derive(Default)]
pub struct ToolVectors {
    dimensions: usize,
    tools: Box<[Arc<Tool>]>,
    numbers: Box<[f32]>,
}

impl fmt::Debug for ToolVectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolVectors({} tools, {} dimensions)", self.tools.len(), self.dimensions)
    }
}

impl ToolVectors {
    /// Those of tools, each with its vector. Vectors of another dimension than the first are left out.
    pub fn of<'a>(known: impl IntoIterator<Item = (Arc<Tool>, &'a [f32])>) -> Self {
        let (mut dimensions, mut tools, mut numbers) = (0, Vec::new(), Vec::new());
        for (tool, vector) in known {
            if tools.is_empty() {
                dimensions = vector.len();
            }
            if vector.len() == dimensions && dimensions > 0 {
                tools.push(tool);
                numbers.extend_from_slice(vector);
            }
        }
        Self { dimensions, tools: tools.into(), numbers: numbers.into() }
    }

    /// How many tools have one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Whether no tool has one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// The vector of the tool in that row.
    #[must_use]
    pub fn vector(&self, row: usize) -> Option<&[f32]> {
        let from = row.checked_mul(self.dimensions)?;
        self.numbers.get(from..from.checked_add(self.dimensions)?).filter(|it| !it.is_empty())
    }

    /// How many numbers a vector has; 0 where there is none.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The tools whose similarity to `asked` is `least` at least, the nearest first, [`MOST_NEAR`] at most: those for which
    /// `place` has a position. None if `asked` is of another dimension.
    pub fn nearest(
        &self,
        asked: &UnitVector,
        least: f32,
        mut place: impl FnMut(&Arc<Tool>) -> Option<usize>,
    ) -> Vec<Near> {
        if asked.0.len() != self.dimensions {
            return Vec::new();
        }
        let rows = self.numbers.chunks_exact(self.dimensions).enumerate();
        let near = rows.filter_map(|(row, vector)| {
            let similarity = dot(vector, &asked.0);
            (similarity >= least).then_some(Candidate { similarity, row })
        });
        let mut near: BinaryHeap<Candidate> = near.collect();
        let mut placed = Vec::new();
        while placed.len() < MOST_NEAR
            && let Some(Candidate { similarity, row }) = near.pop()
        {
            if let Some(at) = self.tools.get(row).and_then(&mut place) {
                placed.push(Near { at, similarity });
            }
        }
        placed
    }
}

/// What a query means, and what it is compared with.
#[derive(Clone, Debug)]
pub struct AskedMeaning {
    /// The query's vector.
    pub query: Arc<UnitVector>,
    /// Those of the tools.
    pub tools: Arc<ToolVectors>,
    /// Least similarity of a tool that counts as near.
    pub least: f32,
}

/// A row that may be near; the nearest is the greatest, of equal ones the first.
#[derive(Clone, Copy)]
struct Candidate {
    similarity: f32,
    row: usize,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.similarity.total_cmp(&other.similarity).then(other.row.cmp(&self.row))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::{Annotations, Rules, ToolName};

    fn tool(name: &str) -> Arc<Tool> {
        let name = ToolName { server: "s".into(), tool: name.into() };
        Arc::new(Tool::named(name, Annotations::default(), &Rules::default()))
    }

    fn unit(numbers: &[f32]) -> UnitVector {
        UnitVector::of(numbers.to_vec()).unwrap()
    }

    #[test]
    fn only_a_direction_is_a_vector() {
        assert_eq!(unit(&[3.0, 0.0, 4.0]).numbers(), [0.6, 0.0, 0.8]);
        assert_eq!(unit(&[-2e38, 0.0]).numbers(), [-1.0, 0.0], "its square is no f32");
        for bad in [
            vec![],
            vec![0.0; 3],
            vec![1.0, f32::NAN],
            vec![f32::INFINITY, 1.0],
            vec![1.0; MAX_DIMENSIONS + 1],
        ] {
            assert_eq!(UnitVector::of(bad.clone()), None, "{bad:?}");
        }
        assert!(UnitVector::of(vec![1.0; MAX_DIMENSIONS]).is_some());
    }

    #[test]
    fn the_nearest_come_first_and_what_has_no_place_takes_none() {
        // More dimensions than are summed side by side, and some over.
        let vector = |angle: f32| {
            let mut numbers = vec![0.0; 2 * LANES + 3];
            numbers[1] = angle.cos();
            numbers[2 * LANES + 1] = angle.sin();
            unit(&numbers)
        };
        let vectors: Vec<_> = (0..200).map(|at| vector(at as f32 / 100.0)).collect();
        let tools: Vec<_> = (0..200).map(|at| tool(&format!("t{at}"))).collect();
        let known = tools.iter().cloned().zip(vectors.iter().map(UnitVector::numbers));
        let all = ToolVectors::of(known.rev());
        assert_eq!((all.len(), all.dimensions()), (200, 2 * LANES + 3));
        let at = |tool: &Arc<Tool>| tools.iter().position(|known| Arc::ptr_eq(known, tool));
        let near = all.nearest(&vector(0.0), 0.9, at);
        // cos 0.45 = 0.9004…
        let expected: Vec<usize> = (0..=45).collect();
        assert_eq!(near.iter().map(|near| near.at).collect::<Vec<_>>(), expected);
        assert!((near[45].similarity - 0.45_f32.cos()).abs() < 1e-6, "{near:?}");
        let even = |tool: &Arc<Tool>| at(tool).filter(|at| at % 2 == 0);
        let near = all.nearest(&vector(0.0), 0.0, even);
        let expected: Vec<usize> = (0..2 * MOST_NEAR).step_by(2).collect();
        assert_eq!(near.iter().map(|near| near.at).collect::<Vec<_>>(), expected);
        assert!(all.nearest(&unit(&[1.0, 0.0]), -1.0, at).is_empty(), "another dimension");
        assert!(ToolVectors::default().nearest(&unit(&[1.0]), -1.0, at).is_empty());
    }

    #[test]
    fn equally_near_tools_keep_their_order_and_strange_vectors_are_left_out() {
        let tools: Vec<_> = ["a", "b", "c"].map(tool).to_vec();
        let (one, other) = (unit(&[1.0, 1.0]), unit(&[1.0, 1.0, 1.0]));
        let vectors = [one.numbers(), other.numbers(), one.numbers()];
        let all = ToolVectors::of(tools.iter().cloned().zip(vectors));
        let at = |tool: &Arc<Tool>| tools.iter().position(|known| Arc::ptr_eq(known, tool));
        let near = all.nearest(&one, 0.5, at);
        assert_eq!(near.iter().map(|near| near.at).collect::<Vec<_>>(), [0, 2]);
    }
}
