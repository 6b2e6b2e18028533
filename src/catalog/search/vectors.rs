//! Embedding vectors of tools and exact nearest-neighbor search.
//!
//! Owns the checked vector and the linear scan over all tools. At these sizes an approximate index would cost more than
//! it saves.

use std::collections::BinaryHeap;
use std::fmt;
use std::sync::Arc;

use mcpproxy_policy::tool::Tool;

/// Maximum number of dimensions of a vector.
pub const MAX_DIMENSIONS: usize = 4096;

/// Maximum number of neighbors.
pub const MAX_NEIGHBORS: usize = 50;

/// Number of independent accumulators.
const LANES: usize = 16;

/// A vector of length 1.
#[derive(Clone, PartialEq)]
pub struct UnitVector(Box<[f32]>);

impl UnitVector {
    /// Normalizes a vector; `None` if it has no direction, too many dimensions, or non-finite numbers.
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

    pub fn numbers(&self) -> &[f32] {
        &self.0
    }
}

impl fmt::Debug for UnitVector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnitVector({} dimensions)", self.0.len())
    }
}

/// A neighbor by position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// Position among all tools.
    pub at: usize,
    /// Cosine similarity.
    pub similarity: f32,
}

/// Vectors of tools in one contiguous block.
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
    /// Builds the block; vectors whose dimension differs from the first one's are skipped.
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

    pub(crate) fn len(&self) -> usize {
        self.tools.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    pub(crate) fn vector(&self, row: usize) -> Option<&[f32]> {
        let from = row.checked_mul(self.dimensions)?;
        self.numbers.get(from..from.checked_add(self.dimensions)?).filter(|it| !it.is_empty())
    }

    /// Dimensions; 0 if empty.
    pub(crate) fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Returns the tools with at least `min` similarity to `asked` for which `place` returns a position. They are
    /// ordered nearest first, at most [`MAX_NEIGHBORS`]. Empty if the dimensions differ.
    pub fn nearest(
        &self,
        asked: &UnitVector,
        min: f32,
        mut place: impl FnMut(&Arc<Tool>) -> Option<usize>,
    ) -> Vec<Near> {
        if asked.0.len() != self.dimensions {
            return Vec::new();
        }
        let rows = self.numbers.chunks_exact(self.dimensions).enumerate();
        let near = rows.filter_map(|(row, vector)| {
            let similarity = dot(vector, &asked.0);
            (similarity >= min).then_some(Candidate { similarity, row })
        });
        let mut near: BinaryHeap<Candidate> = near.collect();
        let mut placed = Vec::new();
        while placed.len() < MAX_NEIGHBORS
            && let Some(Candidate { similarity, row }) = near.pop()
        {
            if let Some(at) = self.tools.get(row).and_then(&mut place) {
                placed.push(Near { at, similarity });
            }
        }
        placed
    }
}

/// Vector of a query and the vectors it is compared with.
#[derive(Clone, Debug)]
pub struct QueryMeaning {
    pub query: Arc<UnitVector>,
    pub tools: Arc<ToolVectors>,
    /// Minimum similarity of a neighbor.
    pub min: f32,
}

/// A row ordered by similarity, then by position.
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
    use mcpproxy_policy::tool::{Annotations, Rules, ToolName};

    fn tool(name: &str) -> Arc<Tool> {
        let name = ToolName { server: "s".into(), tool: name.into() };
        Arc::new(Tool::named(name, Annotations::default(), &Rules::default()))
    }

    fn unit(numbers: &[f32]) -> UnitVector {
        UnitVector::of(numbers.to_vec()).unwrap()
    }

    #[test]
    fn vector_without_direction_is_rejected() {
        assert_eq!(unit(&[3.0, 0.0, 4.0]).numbers(), [0.6, 0.0, 0.8]);
        assert_eq!(unit(&[-2e38, 0.0]).numbers(), [-1.0, 0.0], "the square exceeds f32");
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
    fn nearest_tools_come_first_and_tools_without_a_vector_are_skipped() {
        // The vectors have more dimensions than there are accumulators, with a remainder.
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
        let expected: Vec<usize> = (0..2 * MAX_NEIGHBORS).step_by(2).collect();
        assert_eq!(near.iter().map(|near| near.at).collect::<Vec<_>>(), expected);
        assert!(all.nearest(&unit(&[1.0, 0.0]), -1.0, at).is_empty(), "another dimension");
        assert!(ToolVectors::default().nearest(&unit(&[1.0]), -1.0, at).is_empty());
    }

    #[test]
    fn equal_similarity_keeps_the_order_and_vectors_of_other_dimensions_are_skipped() {
        let tools: Vec<_> = ["a", "b", "c"].map(tool).to_vec();
        let (one, other) = (unit(&[1.0, 1.0]), unit(&[1.0, 1.0, 1.0]));
        let vectors = [one.numbers(), other.numbers(), one.numbers()];
        let all = ToolVectors::of(tools.iter().cloned().zip(vectors));
        let at = |tool: &Arc<Tool>| tools.iter().position(|known| Arc::ptr_eq(known, tool));
        let near = all.nearest(&one, 0.5, at);
        assert_eq!(near.iter().map(|near| near.at).collect::<Vec<_>>(), [0, 2]);
    }
}
