//! Run-time selection of the fastest kernel that the processor supports. All kernels give the same results (tested).

#[cfg(target_arch = "x86_64")]
use super::avx::{Avx2, Avx512};
use super::skip::{NO_CEILING, Portable, Skip, Skipped, Stop, closer};

/// Implementation of the block classification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(Choice);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Kernel {
    /// Kernel for ordinary 64-bit registers; works on every processor.
    pub const PORTABLE: Self = Self(Choice::Portable);

    /// The fastest kernel that this processor supports. The detection is cached.
    pub fn fastest() -> Self {
        Self::usable().next().unwrap_or(Self::PORTABLE)
    }

    /// All kernels that this processor supports, fastest first.
    pub fn usable() -> impl Iterator<Item = Self> {
        Self::all().into_iter().flatten()
    }

    #[cfg(target_arch = "x86_64")]
    fn all() -> [Option<Self>; 3] {
        let avx512 = Avx512::detect().map(|it| Self(Choice::Avx512(it)));
        let avx2 = Avx2::detect().map(|it| Self(Choice::Avx2(it)));
        [avx512, avx2, Some(Self::PORTABLE)]
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn all() -> [Option<Self>; 3] {
        [Some(Self::PORTABLE), None, None]
    }

    /// Skips within a container until it closes or `bytes` is exhausted.
    pub(super) fn skip(self, skip: &mut Skip, bytes: &[u8]) -> Skipped {
        match self.0 {
            Choice::Portable => skip.run(Portable, bytes),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx2(avx2) => avx2.skip(skip, bytes),
            #[cfg(target_arch = "x86_64")]
            Choice::Avx512(avx512) => avx512.skip(skip, bytes),
        }
    }
}

/// Length of the container at the start of `bytes`, brackets included; `None` if it does not close. Examines only strings and
/// brackets: the content may be invalid.
pub(crate) fn container_len(bytes: &[u8]) -> Option<usize> {
    let (opener, rest) = bytes.split_first()?;
    let found = Kernel::fastest().skip(&mut Skip::opened(NO_CEILING), rest);
    let closed = found.stop == Stop::Closed && rest.get(found.used - 1) == Some(&closer(*opener));
    closed.then_some(found.used + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::scan::skip::{BLOCK, Classify};

    #[cfg(target_arch = "x86_64")]
    #[track_caller]
    fn agrees(kernel: impl Classify, block: &[u8; BLOCK], seed: u64) {
        assert_eq!(kernel.classify(block), Portable.classify(block));
        assert_eq!(kernel.running_parity(seed), Portable.running_parity(seed));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn kernels_classify_like_the_portable_kernel() {
        let mut block = [0_u8; BLOCK];
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            for byte in &mut block {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let any = (seed >> 56) as u8;
                let special = b"\"\\{}[]\x1F a\x80"[usize::from(any % 10)];
                *byte = if seed >> 40 & 1 == 0 { any } else { special };
            }
            if let Some(avx2) = Avx2::detect() {
                agrees(avx2, &block, seed);
            }
            if let Some(avx512) = Avx512::detect() {
                agrees(avx512, &block, seed);
            }
        }
    }

    #[test]
    fn container_length_includes_its_closing_bracket() {
        for (text, len) in [
            ("{}", Some(2)),
            ("[{\"]\":[]}],1", Some(10)),
            (r#"{"a":"\\\"}"}}"#, Some(13)),
            ("{]", None),
            ("[}", None),
            ("{\"a\":[1,2]", None),
            ("[\"]", None),
            ("[ \\ ]", None),
            ("", None),
        ] {
            assert_eq!(container_len(text.as_bytes()), len, "{text}");
        }
        let long = format!("[{}]", "{\"a\":[1]},".repeat(100));
        assert_eq!(container_len(format!("{long}]").as_bytes()), Some(long.len()));
    }
}
