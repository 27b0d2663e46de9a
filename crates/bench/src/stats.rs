//! Medians of measurements, and whether two sets of them differ.

use statrs::distribution::{ChiSquared, ContinuousCDF};

/// Above this likelihood of chance two sets do not count as different.
pub const SIGNIFICANT: f64 = 0.05;
/// Fewer measurements on either side can never be significant: the rarest order of 3 and 3 has p = 0.0495, of 2 and 3 0.083.
pub const FEWEST: usize = 3;

/// The median of a set; between the two middle values of an even number; `None` for an empty set.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// A quantile of a set, interpolated between neighbours; `None` for an empty set.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|v| !v.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len().checked_sub(1)?) as f64 * q.clamp(0.0, 1.0);
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * (at - at.floor()))
}

/// Kruskal and Wallis' test: the likelihood that sets from one and the same distribution differ as much as these do in
/// their ranks. Nothing when there are fewer than two sets, an empty one, or only equal values.
pub fn kruskal_wallis(sets: &[&[f64]]) -> Option<f64> {
    if sets.len() < 2 || sets.iter().any(|set| set.is_empty()) {
        return None;
    }
    let mut all: Vec<(f64, usize)> =
        sets.iter().enumerate().flat_map(|(place, set)| set.iter().map(move |value| (*value, place))).collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let n = all.len() as f64;
    let mut rank_sums = vec![0.0; sets.len()];
    let (mut ties, mut first) = (0.0, 0);
    while first < all.len() {
        // Equal values share the mean of their ranks.
        let equal = all[first..].iter().take_while(|(value, _)| *value == all[first].0).count();
        let rank = first as f64 + (equal as f64 + 1.0) / 2.0;
        for (_, place) in &all[first..first + equal] {
            rank_sums[*place] += rank;
        }
        ties += (equal as f64).powi(3) - equal as f64;
        first += equal;
    }
    let correction = 1.0 - ties / (n.powi(3) - n);
    if correction <= 0.0 {
        return None;
    }
    let squares: f64 = rank_sums.iter().zip(sets).map(|(sum, set)| sum * sum / set.len() as f64).sum();
    let h = (12.0 / (n * (n + 1.0)) * squares - 3.0 * (n + 1.0)) / correction;
    let distribution = ChiSquared::new((sets.len() - 1) as f64).ok()?;
    Some(1.0 - distribution.cdf(h))
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Too few measurements to say anything.
    TooFew,
    /// Chance explains it.
    NoDifference {
        /// The likelihood of chance.
        p: f64,
    },
    /// The first is this many times the second.
    Times {
        /// Ratio of the medians.
        ratio: f64,
        /// The likelihood of chance.
        p: f64,
    },
}

/// Compares the medians of two sets, if they differ.
pub fn compare(first: &[f64], second: &[f64]) -> Verdict {
    if first.len() < FEWEST || second.len() < FEWEST {
        return Verdict::TooFew;
    }
    let p = kruskal_wallis(&[first, second]).unwrap_or(1.0);
    match (median(first), median(second)) {
        (Some(a), Some(b)) if p < SIGNIFICANT && b != 0.0 => Verdict::Times { ratio: a / b, p },
        _ => Verdict::NoDifference { p },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: Option<f64>, wanted: f64) {
        assert!(value.is_some_and(|v| (v - wanted).abs() < 5e-5), "{value:?}, not {wanted}");
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.9), Some(4.6));
        assert_eq!((median(&[]), median(&[f64::NAN, 7.0])), (None, Some(7.0)));
    }

    /// Expected values from R's kruskal.test and scipy.stats.kruskal.
    #[test]
    fn kruskal_wallis_gives_the_textbooks_values() {
        // scipy's own examples: H = 0.2727, p = 0.6015, and with ties H = 7.0, p = 0.0302.
        near(kruskal_wallis(&[&[1.0, 3.0, 5.0, 7.0, 9.0], &[2.0, 4.0, 6.0, 8.0, 10.0]]), 0.60151);
        near(kruskal_wallis(&[&[1.0, 1.0, 1.0], &[2.0, 2.0, 2.0], &[2.0, 2.0]]), 0.03020);
        // R's airquality example, Ozone by Month, is too long; Hollander and Wolfe's mucociliary example, p = 0.68.
        let normal: &[f64] = &[2.9, 3.0, 2.5, 2.6, 3.2];
        let obstructive: &[f64] = &[3.8, 2.7, 4.0, 2.4];
        let asbestosis: &[f64] = &[2.8, 3.4, 3.7, 2.2, 2.0];
        near(kruskal_wallis(&[normal, obstructive, asbestosis]), 0.67997);
        near(kruskal_wallis(&[&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]]), 0.04953);
    }

    #[test]
    fn what_cannot_be_tested_is_not() {
        assert_eq!(kruskal_wallis(&[&[1.0]]), None);
        assert_eq!(kruskal_wallis(&[&[1.0], &[]]), None);
        assert_eq!(kruskal_wallis(&[&[1.0, 1.0], &[1.0]]), None);
    }

    #[test]
    fn chance_is_called_no_difference() {
        assert!(matches!(compare(&[1.0, 3.0, 5.0], &[2.0, 4.0, 6.0]), Verdict::NoDifference { .. }));
        assert!(matches!(compare(&[1.0, 1.0, 1.0], &[1.0, 1.0, 1.0]), Verdict::NoDifference { p: 1.0 }));
        assert_eq!(compare(&[1.0, 2.0], &[4.0, 5.0, 6.0]), Verdict::TooFew);
        match compare(&[8.0, 10.0, 12.0], &[4.0, 5.0, 6.0]) {
            Verdict::Times { ratio, p } => assert!(ratio == 2.0 && p < SIGNIFICANT),
            other => panic!("{other:?}"),
        }
    }
}
