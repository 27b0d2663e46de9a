//! Makes metrics in etcd's buckets and registers them.

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// A metric could not be registered: its name is malformed or repeated, a mistake in this room.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

/// Makes metrics and registers them.
pub(super) struct Register<'a>(&'a Registry);

impl<'a> Register<'a> {
    pub(super) fn new(registry: &'a Registry) -> Self {
        Self(registry)
    }

    pub(super) fn add<C: Collector + Clone + 'static>(
        &self,
        collector: prometheus::Result<C>,
    ) -> Result<C, MetricsError> {
        let collector = collector?;
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter, MetricsError> {
        self.add(IntCounter::new(name, help))
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, MetricsError> {
        self.add(IntGauge::new(name, help))
    }

    pub(super) fn float(&self, name: &str, help: &str) -> Result<Gauge, MetricsError> {
        self.add(Gauge::new(name, help))
    }

    pub(super) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, MetricsError> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub(super) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, MetricsError> {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// etcd's buckets: `start`, doubled `count - 1` times.
    pub(super) fn seconds(&self, name: &str, help: &str, start: f64, count: usize) -> Result<Histogram, MetricsError> {
        let buckets = prometheus::exponential_buckets(start, 2.0, count)?;
        self.add(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets)))
    }

    pub(super) fn seconds_each(
        &self,
        name: &str,
        help: &str,
        start: f64,
        count: usize,
        labels: &[&str],
    ) -> Result<HistogramVec, MetricsError> {
        let buckets = prometheus::exponential_buckets(start, 2.0, count)?;
        self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels))
    }

    /// Two histograms in etcd's buckets: first for failures, then for successes.
    pub(super) fn succeeded(
        &self,
        name: &str,
        help: &str,
        start: f64,
        count: usize,
    ) -> Result<[Histogram; 2], MetricsError> {
        let buckets = prometheus::exponential_buckets(start, 2.0, count)?;
        let vec = self.add(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), &["success"]))?;
        Ok(["false", "true"].map(|success| vec.with_label_values(&[success])))
    }
}
