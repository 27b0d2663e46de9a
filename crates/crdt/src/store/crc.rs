//! CRC-32C over parts of which some are known by their own CRC only.

use std::collections::HashMap;

/// The polynomial, its highest coefficient left out, lowest first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// CRC-32C of what was fed to it.
///
/// To put a part behind is to multiply what came before by x to the number of the part's bits, modulo the polynomial, as in
/// zlib's `crc32_combine`. The power of a length is kept, because most values of a store are of few lengths: the crate that
/// computes the parts takes 7 µs for each.
#[derive(Default)]
pub struct Crc {
    crc: u32,
    powers: HashMap<u32, u32>,
}

impl Crc {
    /// The CRC so far.
    pub fn get(&self) -> u32 {
        self.crc
    }

    /// Begins again with nothing.
    pub fn restart(&mut self) {
        self.crc = 0;
    }

    /// Goes on with these bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }

    /// Goes on with so many bytes that have that CRC.
    pub fn feed_crc(&mut self, len: u32, crc: u32) {
        let power = *self.powers.entry(len).or_insert_with(|| power_of_bytes(len));
        self.crc = product(power, self.crc) ^ crc;
    }
}

/// x to eight times that, modulo the polynomial.
fn power_of_bytes(len: u32) -> u32 {
    // x to the eighth, and then its squares.
    let (mut power, mut square, mut rest) = (ONE, ONE >> 8, len);
    while rest > 0 {
        if rest & 1 == 1 {
            power = product(power, square);
        }
        square = product(square, square);
        rest >>= 1;
    }
    power
}

/// The product of two polynomials, modulo the polynomial.
fn product(a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    for power in (0..32).rev() {
        if a >> power & 1 == 1 {
            sum ^= b;
        }
        b = if b & 1 == 1 { b >> 1 ^ POLYNOMIAL } else { b >> 1 };
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_give_the_crc_of_the_whole() {
        let bytes: Vec<u8> = (0..70_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for len in [0, 1, 2, 3, 7, 8, 9, 31, 32, 255, 256, 257, 4096, 65_535, 65_536] {
            let (before, rest) = bytes.split_at(100);
            let (part, after) = (&rest[..len], &rest[len..len + 50]);
            let mut crc = Crc::default();
            crc.feed(before);
            for _ in 0..2 {
                crc.feed_crc(len as u32, crc32c::crc32c(part));
            }
            crc.feed(after);
            assert_eq!(crc.get(), crc32c::crc32c(&[before, part, part, after].concat()), "{len}");
        }
    }
}
