//! etcd's rules across flags, with its error texts, and values that follow from several flags.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::flags::{Effect, FLAGS};
use super::url::{Url, UrlError, join};
use super::value::{ValueError, parse_duration};
use super::{AutoCompaction, Config, DEFAULT_CLIENT_URL, DEFAULT_NAME, DEFAULT_PEER_URL, default_initial_cluster};

/// Flags that contradict each other, or that eddy cannot serve; the texts are etcd's where etcd has one.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum ConfigError {
    #[error("{0}")]
    Url(#[from] UrlError),
    #[error("--initial-advertise-peer-urls {urls:?} must be \"host:port\" ({source})")]
    AdvertisePeer { urls: String, source: UrlError },
    #[error(
        "--advertise-client-urls {urls:?} must be in the format \"host:port\", \"unix:/path/to/socket\" or \"unixs:/path/to/socket\" ({source})"
    )]
    AdvertiseClient { urls: String, source: UrlError },
    #[error("--advertise-client-urls is required when --listen-client-urls is set explicitly")]
    AdvertiseClientMissing,
    #[error("v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"")]
    DiscoveryFallback,
    #[error("eddy does not take --{flag}: {instead}")]
    Refused { flag: &'static str, instead: &'static str },
    #[error("--heartbeat-interval must be >0 (set to 0ms)")]
    Heartbeat,
    #[error("--election-timeout must be >0 (set to 0ms)")]
    Election,
    #[error("--election-timeout[{election}ms] should be at least as 5 times as --heartbeat-interval[{heartbeat}ms]")]
    ElectionTooShort { election: u64, heartbeat: u64 },
    #[error("--election-timeout[{0}ms] is too long, and should be set less than 50000ms")]
    ElectionTooLong(u64),
    #[error("unexpected clusterState {0:?}")]
    ClusterState(String),
    #[error("undefined auto-compaction-mode")]
    CompactionModeUndefined,
    #[error("unknown auto-compaction-mode {0:?}")]
    CompactionMode(String),
    #[error("error parsing CompactionRetention: {0}")]
    CompactionRetention(ValueError),
    #[error("enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint")]
    LeaseCheckpointPersist,
    #[error("--compact-hash-check-time must be >0 (set to 0s)")]
    CompactHashCheckTime,
    #[error("unknown logger option {0:?}")]
    Logger(String),
    #[error("--logger=capnslog is removed in v3.5")]
    Capnslog,
    #[error("multi logoutput for \"default\" is not supported yet")]
    LogOutputs,
    #[error("unrecognized level: {0:?}")]
    LogLevel(String),
    #[error("unknown log format: {0}, supported values json, console")]
    LogFormat(String),
    #[error("TLS key/cert (--cert-file, --key-file) must be provided for client url {0} with HTTPS scheme")]
    ClientTlsMissing(Url),
    #[error("cannot listen on TLS for {0}: KeyFile and CertFile are not presented")]
    PeerTlsMissing(String),
    #[error("client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url")]
    MetricsTlsMissing,
    #[error("cannot bind both --listen-client-urls and --listen-client-http-urls on the same url {0}")]
    SameUrl(Url),
    #[error("couldn't find local name {0:?} in the initial cluster configuration")]
    LocalName(String),
    #[error("--initial-cluster has {missing} but missing from --initial-advertise-peer-urls={advertised}")]
    NotAdvertised { missing: String, advertised: String },
    #[error("--initial-advertise-peer-urls has {missing} but missing from --initial-cluster={cluster}")]
    NotInCluster { missing: String, cluster: String },
    #[error("initial cluster {0} has duplicate url")]
    DuplicateUrl(String),
    #[error("--merge-policy names the counters: leave --counters out")]
    TwoPolicies,
}

const LEVELS: &[&str] = &["debug", "info", "warn", "error", "dpanic", "panic", "fatal"];

impl Config {
    /// Fills in what follows from other flags, then checks everything that can be checked without touching the
    /// network or the data dir.
    ///
    /// # Errors
    /// The first rule that is broken, in etcd's order.
    pub fn finish(mut self) -> Result<Config, ConfigError> {
        if self.was_given("listen-client-urls") && !self.was_given("advertise-client-urls") && !self.is_from_file() {
            self.advertise_client_urls.clear();
        }
        self.check_refused()?;
        self.check_log()?;
        self.check_urls()?;
        self.check_bootstrap_flags()?;
        self.check_raft()?;
        if self.advertise_client_urls.is_empty() {
            return Err(ConfigError::AdvertiseClientMissing);
        }
        self.auto_compaction()?;
        if self.gate("LeaseCheckpointPersist") && !self.gate("LeaseCheckpoint") {
            return Err(ConfigError::LeaseCheckpointPersist);
        }
        if self.raft.compact_hash_check_time.is_zero() {
            return Err(ConfigError::CompactHashCheckTime);
        }
        self.check_tls_present()?;
        if self.was_given("merge-policy") && self.was_given("counters") {
            return Err(ConfigError::TwoPolicies);
        }
        self.follow_defaults();
        Ok(self)
    }

    fn is_from_file(&self) -> bool {
        self.was_given("config-file")
    }

    fn check_refused(&self) -> Result<(), ConfigError> {
        for flag in FLAGS.iter().filter(|flag| self.refused.contains(flag.name)) {
            if let Effect::Refused(instead) = flag.effect {
                return Err(ConfigError::Refused { flag: flag.name, instead });
            }
        }
        Ok(())
    }

    fn check_log(&self) -> Result<(), ConfigError> {
        match self.log.logger.as_str() {
            "zap" => {}
            "capnslog" => return Err(ConfigError::Capnslog),
            other => return Err(ConfigError::Logger(other.to_owned())),
        }
        if self.log.outputs.len() > 1 && self.log.outputs.iter().any(|output| output == "default") {
            return Err(ConfigError::LogOutputs);
        }
        if !LEVELS.contains(&self.log.level.to_ascii_lowercase().as_str()) {
            return Err(ConfigError::LogLevel(self.log.level.clone()));
        }
        match self.log.format.as_str() {
            "json" | "console" => Ok(()),
            other => Err(ConfigError::LogFormat(other.to_owned())),
        }
    }

    fn check_urls(&self) -> Result<(), ConfigError> {
        for list in
            [&self.listen_peer_urls, &self.listen_client_urls, &self.listen_client_http_urls, &self.listen_metrics_urls]
        {
            list.iter().try_for_each(Url::check_bind)?;
        }
        self.initial_advertise_peer_urls
            .iter()
            .try_for_each(Url::check_host)
            .map_err(|source| ConfigError::AdvertisePeer { urls: join(&self.initial_advertise_peer_urls), source })?;
        self.advertise_client_urls
            .iter()
            .try_for_each(Url::check_host)
            .map_err(|source| ConfigError::AdvertiseClient { urls: join(&self.advertise_client_urls), source })?;
        for url in &self.listen_client_http_urls {
            // Port 0 stands for another port each time.
            let fixed = url.scheme().is_unix() || url.port() != "0";
            if fixed && self.listen_client_urls.iter().any(|other| other.address() == url.address()) {
                return Err(ConfigError::SameUrl(url.clone()));
            }
        }
        Ok(())
    }

    fn check_bootstrap_flags(&self) -> Result<(), ConfigError> {
        if self.raft.discovery_fallback == "proxy" {
            return Err(ConfigError::DiscoveryFallback);
        }
        if !matches!(self.initial_cluster_state.as_str(), "new" | "existing") {
            return Err(ConfigError::ClusterState(self.initial_cluster_state.clone()));
        }
        Ok(())
    }

    fn check_raft(&self) -> Result<(), ConfigError> {
        let (heartbeat, election) = (self.raft.heartbeat_interval_ms, self.raft.election_timeout_ms);
        if heartbeat == 0 {
            return Err(ConfigError::Heartbeat);
        }
        if election == 0 {
            return Err(ConfigError::Election);
        }
        if heartbeat.saturating_mul(5) > election {
            return Err(ConfigError::ElectionTooShort { election, heartbeat });
        }
        if election > 50_000 {
            return Err(ConfigError::ElectionTooLong(election));
        }
        Ok(())
    }

    fn check_tls_present(&self) -> Result<(), ConfigError> {
        let client_tls = !self.client_tls.is_empty() || self.client_tls.auto_tls;
        let peer_tls = !self.peer_tls.is_empty() || self.peer_tls.auto_tls;
        if !peer_tls && let Some(url) = self.listen_peer_urls.iter().find(|url| url.scheme().is_tls()) {
            return Err(ConfigError::PeerTlsMissing(url.address()));
        }
        let mut client_urls = self.listen_client_urls.iter().chain(&self.listen_client_http_urls);
        if !client_tls && let Some(url) = client_urls.find(|url| url.scheme().is_tls()) {
            return Err(ConfigError::ClientTlsMissing(url.clone()));
        }
        if !client_tls && self.listen_metrics_urls.iter().any(|url| url.scheme().is_tls()) {
            return Err(ConfigError::MetricsTlsMissing);
        }
        Ok(())
    }

    /// Fills in what etcd derives after validation. It derives the data dir from the name, and the initial cluster from
    /// name and peer URLs. It derives advertised addresses from the host's address, where the member listens on all
    /// addresses.
    fn follow_defaults(&mut self) {
        let host = default_host();
        if let Some(host) = host {
            let listens_on_all = |urls: &[Url]| urls.first().is_some_and(|url| url.host() == "0.0.0.0");
            let at = |urls: &[Url]| urls.first().map(|url| url.with_host(host));
            if join(&self.initial_advertise_peer_urls) == DEFAULT_PEER_URL && listens_on_all(&self.listen_peer_urls) {
                self.initial_advertise_peer_urls = at(&self.listen_peer_urls).into_iter().collect();
            }
            if join(&self.advertise_client_urls) == DEFAULT_CLIENT_URL && listens_on_all(&self.listen_client_urls) {
                self.advertise_client_urls = at(&self.listen_client_urls).into_iter().collect();
            }
        }
        if self.name != DEFAULT_NAME && self.initial_cluster == default_initial_cluster() {
            self.initial_cluster = self.initial_cluster_from_name();
        }
        if self.data_dir.as_os_str().is_empty() {
            // Not `default.etcd`: an eddy and an etcd tried out in one folder must not meet in one data dir.
            self.data_dir = match self.name.as_str() {
                DEFAULT_NAME => PathBuf::from("default.eddy"),
                name => PathBuf::from(format!("{name}.etcd")),
            };
        }
    }

    fn initial_cluster_from_name(&self) -> String {
        let name = if self.name.is_empty() { DEFAULT_NAME } else { &self.name };
        let pairs: Vec<_> = self.initial_advertise_peer_urls.iter().map(|url| format!("{name}={url}")).collect();
        pairs.join(",")
    }

    /// Whether a feature gate is on.
    pub fn gate(&self, name: &str) -> bool {
        self.feature_gates.get(name).copied().unwrap_or(false)
    }

    /// The rule of automatic compaction.
    ///
    /// # Errors
    /// An unknown mode, or a retention that is neither a number nor a duration.
    pub fn auto_compaction(&self) -> Result<AutoCompaction, ConfigError> {
        let revisions = match self.auto_compaction_mode.as_str() {
            "revision" => true,
            "periodic" => false,
            "" => return Err(ConfigError::CompactionModeUndefined),
            other => return Err(ConfigError::CompactionMode(other.to_owned())),
        };
        let number = self.auto_compaction_retention.parse::<i64>().ok().filter(|number| *number >= 0);
        Ok(match (revisions, number) {
            (_, Some(0)) => AutoCompaction::Off,
            (true, Some(kept)) => AutoCompaction::Revision(kept),
            (false, Some(hours)) => {
                AutoCompaction::Periodic(Duration::from_secs(hours.unsigned_abs().saturating_mul(3600)))
            }
            (_, None) => {
                let kept = parse_duration(&self.auto_compaction_retention).map_err(ConfigError::CompactionRetention)?;
                match (kept.is_zero(), revisions) {
                    (true, _) => AutoCompaction::Off,
                    (false, false) => AutoCompaction::Periodic(kept),
                    // etcd reads the duration's nanoseconds as a number of revisions; so do we.
                    (false, true) => AutoCompaction::Revision(i64::try_from(kept.as_nanos()).unwrap_or(i64::MAX)),
                }
            }
        })
    }

    /// The members at bootstrap by name.
    ///
    /// # Errors
    /// A URL that is not one.
    pub fn initial_members(&self) -> Result<BTreeMap<String, Vec<Url>>, ConfigError> {
        let mut members: BTreeMap<String, Vec<Url>> = BTreeMap::new();
        for pair in self.initial_cluster.split(',').filter(|pair| !pair.is_empty()) {
            let (name, url) = pair.split_once('=').unwrap_or((pair, ""));
            members.entry(name.to_owned()).or_default().push(Url::parse(url)?);
        }
        Ok(members)
    }

    /// etcd's checks when a data dir is new: this member is in the initial cluster, with the URLs it advertises.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check_bootstrap(&self) -> Result<(), ConfigError> {
        let members = self.initial_members()?;
        let own = members.get(&self.name).ok_or_else(|| ConfigError::LocalName(self.name.clone()))?;
        let advertised = &self.initial_advertise_peer_urls;
        // etcd resolves names before it compares; an address and a name of one host pass there, and here.
        let same = |a: &Url, b: &Url| {
            a == b || (a.scheme() == b.scheme() && resolve(a).is_some_and(|r| Some(r) == resolve(b)))
        };
        let missing: Vec<_> = own.iter().filter(|url| !advertised.iter().any(|other| same(url, other))).collect();
        if !missing.is_empty() {
            let missing: Vec<_> = missing.iter().map(|url| format!("{}={url}", self.name)).collect();
            return Err(ConfigError::NotAdvertised { missing: missing.join(","), advertised: join(advertised) });
        }
        let missing: Vec<_> = advertised.iter().filter(|url| !own.iter().any(|other| same(url, other))).collect();
        if !missing.is_empty() {
            let missing: Vec<_> = missing.iter().map(|url| url.to_string()).collect();
            return Err(ConfigError::NotInCluster {
                missing: missing.join(","),
                cluster: self.initial_cluster_from_name(),
            });
        }
        let mut all: Vec<_> = members.values().flatten().collect();
        all.sort();
        if all.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(ConfigError::DuplicateUrl(self.initial_cluster.clone()));
        }
        Ok(())
    }

    /// The flags that were given and have no effect in eddy, each with the reason.
    pub fn flags_without_effect(&self) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
        FLAGS.iter().filter(|flag| self.was_given(flag.name)).filter_map(|flag| match flag.effect {
            Effect::Warns(reason) => Some((flag.name, reason)),
            Effect::Works | Effect::Refused(_) => None,
        })
    }

    /// Folder of a generated certificate: `fixtures/client` or `fixtures/peer` in the data dir.
    pub fn fixtures_dir(data_dir: &Path, side: &str) -> PathBuf {
        data_dir.join("fixtures").join(side)
    }
}

fn resolve(url: &Url) -> Option<SocketAddr> {
    use std::net::ToSocketAddrs;
    let port = url.port().parse::<u16>().ok()?;
    (url.host(), port).to_socket_addrs().ok()?.next()
}

/// The address of the interface that the default route uses. Connecting a datagram socket sends nothing.
fn default_host() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // 192.0.2.0/24 is reserved for documentation: never local, so the default route is what answers.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|addr| addr.ip())
}
