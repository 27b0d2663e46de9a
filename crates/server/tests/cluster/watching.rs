//! The alerts and the dashboard of `docker/monitoring`: every series and label that they name is one that eddy serves.
//! When an alert fires is promtool's business: see `tests.yaml` beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cluster::{Cluster, Setup, eventually};
use crate::promql::{Selector, labels_in_text, parse};

/// What Prometheus itself adds to each series of a scrape.
const TARGET_LABELS: [&str; 2] = ["job", "instance"];

fn read(name: &str) -> Result<String> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

fn text<'a>(of: &'a Value, name: &str) -> Result<&'a str> {
    of.get(name).and_then(Value::as_str).with_context(|| format!("no {name} in {of}"))
}

fn list<'a>(of: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    of.get(name).and_then(Value::as_array).with_context(|| format!("no {name} in {of}"))
}

fn yaml(name: &str) -> Result<Value> {
    Ok(serde_yaml_ng::from_str(&read(name)?)?)
}

fn alerts() -> Result<Vec<Value>> {
    let rules = yaml("docker/monitoring/alerts.yaml")?;
    let mut alerts = Vec::new();
    for group in list(&rules, "groups")? {
        alerts.extend(list(group, "rules")?.iter().cloned());
    }
    ensure!(alerts.len() > 15, "only {} alerts were found", alerts.len());
    Ok(alerts)
}

/// The panels of the dashboard that ask something, without the rows.
fn panels(dashboard: &Value) -> Result<Vec<&Value>> {
    let panels: Vec<&Value> = list(dashboard, "panels")?.iter().filter(|panel| panel["type"] != "row").collect();
    ensure!(panels.len() > 10, "only {} panels were found", panels.len());
    Ok(panels)
}

/// Every data source that something in the dashboard asks.
fn datasources<'a>(within: &'a Value, found: &mut Vec<&'a Value>) {
    match within {
        Value::Object(fields) => {
            found.extend(fields.get("datasource"));
            fields.values().for_each(|field| datasources(field, found));
        }
        Value::Array(parts) => parts.iter().for_each(|part| datasources(part, found)),
        _ => {}
    }
}

/// What a replica serves: of each series its labels, with their values.
#[derive(Default)]
struct Served(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Served {
    fn take(&mut self, metrics: &str) {
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            for selector in parse(line.rsplit_once(' ').map_or("", |(series, _)| series)).selectors {
                let labels = self.0.entry(selector.series).or_default();
                for (name, _, value) in selector.matchers {
                    labels.entry(name).or_default().insert(value);
                }
            }
        }
    }

    /// Whether a selector can find something here.
    fn check(&self, selector: &Selector) -> Result<()> {
        if selector.series == "up" {
            return Ok(());
        }
        let series = &selector.series;
        let labels = self.0.get(series).with_context(|| format!("eddy does not serve {series}"))?;
        ensure!(
            selector.matchers.iter().any(|(name, _, _)| name == "job"),
            "{series} is not only of eddy: other programs serve the like"
        );
        for (name, operator, value) in &selector.matchers {
            if TARGET_LABELS.contains(&name.as_str()) {
                continue;
            }
            let values = labels.get(name).with_context(|| format!("{series} has no label {name}"))?;
            let wanted: Vec<&str> = if operator.contains('~') { value.split('|').collect() } else { vec![value] };
            for value in wanted {
                ensure!(values.contains(value), "{series} has no {name} {value:?}, only {values:?}");
            }
        }
        Ok(())
    }

    /// Whether an expression names only what is here; `shown` are labels that a text takes from its result.
    fn check_expr(&self, expr: &str, shown: &BTreeSet<String>) -> Result<()> {
        let found = parse(expr);
        ensure!(!found.selectors.is_empty(), "it asks for no series");
        let mut known: BTreeSet<&str> = TARGET_LABELS.into();
        for selector in &found.selectors {
            self.check(selector)?;
            known.extend(self.0.get(&selector.series).into_iter().flatten().map(|(name, _)| name.as_str()));
        }
        for label in &found.labels {
            ensure!(known.contains(label.as_str()), "no series of it has the label {label}");
        }
        // What is left after adding up are the labels it was added up by.
        let left: BTreeSet<&str> =
            if found.labels.is_empty() { known } else { found.labels.iter().map(String::as_str).collect() };
        for label in shown {
            ensure!(left.contains(label.as_str()), "its text shows the label {label}, which the result lacks");
        }
        Ok(())
    }
}

#[tokio::test]
async fn every_series_of_the_alerts_and_the_dashboard_is_served() -> Result<()> {
    let flags = |_| vec!["--metrics=extensive".to_owned()];
    let cluster = Cluster::with(3, Setup { flags: Some(&flags), ..Setup::default() }).await?;
    for replica in &cluster.replicas {
        replica.put("contested", &replica.name).await?;
        replica.get("contested").await?;
    }
    cluster.settled().await?;
    let own = &cluster.replicas[0];
    // A ping goes out every five seconds.
    eventually("a round trip was measured", || async {
        ensure!(own.server.get("/metrics").await?.contains("etcd_network_peer_round_trip_time_seconds_count{"));
        Ok(())
    })
    .await?;
    let mut served = Served::default();
    served.take(&own.server.get("/metrics").await?);
    ensure!(served.0.len() > 100, "only {} series were found", served.0.len());

    let mut wrong = Vec::new();
    for alert in alerts()? {
        let mut shown = BTreeSet::new();
        for name in ["summary", "description"] {
            shown.extend(labels_in_text(text(&alert["annotations"], name)?, "$labels."));
        }
        if let Err(error) = served.check_expr(text(&alert, "expr")?, &shown) {
            wrong.push(format!("{}: {error:#}", text(&alert, "alert")?));
        }
    }
    let dashboard: Value = serde_json::from_str(&read("docker/monitoring/dashboard.json")?)?;
    for panel in panels(&dashboard)? {
        for target in list(panel, "targets")? {
            let shown = labels_in_text(text(target, "legendFormat")?, "");
            if let Err(error) = served.check_expr(text(target, "expr")?, &shown) {
                wrong.push(format!("panel {}: {error:#}", text(panel, "title")?));
            }
        }
    }
    for variable in list(&dashboard["templating"], "list")?.iter().filter(|variable| variable["type"] == "query") {
        let query = text(&variable["query"], "query")?;
        let series = query.strip_prefix("label_values(").and_then(|rest| rest.split([',', '{']).next());
        ensure!(series.is_some_and(|series| served.0.contains_key(series)), "variable of {query}");
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Gauges of what is wrong are there while nothing is: an alert on a series that is absent never fires.
#[tokio::test]
async fn what_may_go_wrong_is_served_as_zero_before_it_does() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    cluster.settled().await?;
    let replica = &cluster.replicas[0];
    let peer = cluster.replicas[1].status().await?.member_id;
    let metrics = replica.server.get("/metrics").await?;
    let mut zero = vec!["eddy_merge_losses_total{rule=\"field-merge\"}".to_owned()];
    zero.extend(["nospace", "corrupt", "spaces"].map(|kind| format!("eddy_alarm{{kind=\"{kind}\"}}")));
    for name in ["eddy_peer_states_differ", "eddy_peer_requests_again_total"] {
        zero.push(format!("{name}{{peer=\"{peer:x}\"}}"));
    }
    zero.push(format!("etcd_network_peer_received_failures_total{{From=\"{peer:x}\"}}"));
    zero.retain(|series| !metrics.contains(&format!("\n{series} 0\n")));
    ensure!(zero.is_empty(), "not 0: {zero:?}");
    ensure!(replica.metric("eddy_quota_used_bytes").await? > 0);
    // It is counted with the first write, and the disk of a test has some space.
    ensure!(replica.metric("eddy_disk_free_bytes").await? > 8 << 20, "{metrics}");
    Ok(())
}

#[test]
fn every_alert_says_what_to_do_and_has_a_test() -> Result<()> {
    let tests = yaml("docker/monitoring/tests.yaml")?;
    let tests = list(&tests, "tests")?;
    let page = read("docs/operations.md")?;
    let anchors: BTreeSet<String> = page
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim().to_lowercase().replace(',', "").replace(' ', "-"))
        .collect();
    for alert in alerts()? {
        let name = text(&alert, "alert")?;
        let severity = text(&alert["labels"], "severity")?;
        ensure!(["info", "warning", "critical"].contains(&severity), "{name}: {severity}");
        for note in ["summary", "description"] {
            ensure!(text(&alert["annotations"], note)?.ends_with('.'), "{name}: {note} is no sentence");
        }
        let runbook = text(&alert["annotations"], "runbook")?;
        let anchor = runbook.strip_prefix("docs/operations.md#").with_context(|| format!("{name}: {runbook}"))?;
        ensure!(anchors.contains(anchor), "{name}: docs/operations.md has no section {anchor}");

        let test = tests.iter().find(|test| test["name"] == name).with_context(|| format!("{name} has no test"))?;
        let told = format!("alertname=\"{name}\"");
        let fires: Vec<bool> = list(test, "promql_expr_test")?
            .iter()
            .map(|case| {
                Ok(list(case, "exp_samples")?
                    .iter()
                    .any(|sample| sample["labels"].to_string().replace('\\', "").contains(&told)))
            })
            .collect::<Result<_>>()?;
        ensure!(fires.contains(&true) && fires.contains(&false), "{name} is not seen both to fire and to be quiet");
    }
    Ok(())
}

#[test]
fn the_dashboard_is_one_that_grafana_takes() -> Result<()> {
    let dashboard: Value = serde_json::from_str(&read("docker/monitoring/dashboard.json")?)?;
    // Grafana 10 brings older ones up to this number, and later ones know it.
    ensure!(dashboard["schemaVersion"].as_u64().is_some_and(|version| (36..=39).contains(&version)));
    let variables = list(&dashboard["templating"], "list")?;
    let source = variables.iter().find(|variable| variable["type"] == "datasource").context("no data source")?;
    ensure!(source["name"] == "datasource" && source["query"] == "prometheus", "{source}");
    let mut sources = Vec::new();
    datasources(&dashboard, &mut sources);
    ensure!(sources.len() > 20, "only {} data sources were found", sources.len());
    for source in sources {
        ensure!(source["uid"] == "${datasource}", "{source} is not the one that was chosen");
    }
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in list(&dashboard, "panels")? {
        let title = text(panel, "title")?;
        ensure!(ids.insert(panel["id"].as_u64().context("an id")?), "the id of {title} is another panel's");
        let place = |side: &str| panel["gridPos"][side].as_u64().with_context(|| format!("{title} has no {side}"));
        let (x, y, width, height) = (place("x")?, place("y")?, place("w")?, place("h")?);
        ensure!(x + width <= 24, "{title} is wider than the page");
        for cell in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
            ensure!(taken.insert(cell), "{title} lies on another panel");
        }
    }
    for panel in panels(&dashboard)? {
        let title = text(panel, "title")?;
        ensure!(["stat", "timeseries"].contains(&text(panel, "type")?), "{title} is of an unknown type");
        let targets = list(panel, "targets")?;
        if targets.is_empty() || !text(panel, "description")?.ends_with('.') {
            bail!("{title} asks nothing, or does not say what it shows");
        }
    }
    Ok(())
}
