//! As much HTTP as it takes to ask a node for its readiness and its metrics.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest that a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The body of a GET at `address` (host and port).
///
/// # Errors
/// When nothing answers in time, or with another status than 200.
pub async fn get(address: &str, path: &str) -> Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        anyhow::Ok(bytes)
    };
    let bytes = tokio::time::timeout(PATIENCE, exchange).await.with_context(|| format!("{address}{path}"))??;
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").context("no HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200") {
        bail!("{path}: {status}: {}", body.chars().take(200).collect::<String>());
    }
    Ok(body.to_owned())
}

/// Metrics of a page in Prometheus' format, each the sum over its labels.
pub fn sums(page: &str) -> HashMap<&str, f64> {
    let mut sums = HashMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let name = series.split_once('{').map_or(series, |(name, _)| name);
        if let Ok(value) = value.parse::<f64>() {
            *sums.entry(name).or_default() += value;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_summed_over_their_labels() {
        let page = "# HELP a x\na{to=\"1\"} 2\na{to=\"2\"} 3.5\nb 1e3\nnonsense\nc{x=\"y z\"} 7\n";
        let sums = sums(page);
        assert_eq!((sums["a"], sums["b"], sums["c"]), (5.5, 1000.0, 7.0));
        assert_eq!(sums.len(), 3);
    }

    #[tokio::test]
    async fn another_status_than_200_is_an_error() -> Result<()> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let server = tokio::spawn(async move {
            for answer in ["HTTP/1.0 200 OK\r\n\r\nfine", "HTTP/1.0 503 no\r\n\r\nnot yet"] {
                let (mut stream, _) = listener.accept().await?;
                let mut request = [0; 512];
                let length = stream.read(&mut request).await?;
                anyhow::ensure!(request[..length].starts_with(b"GET /readyz "));
                stream.write_all(answer.as_bytes()).await?;
            }
            Ok(())
        });
        assert_eq!(get(&address, "/readyz").await?, "fine");
        let error = get(&address, "/readyz").await.expect_err("503").to_string();
        assert!(error.contains("503") && error.contains("not yet"), "{error}");
        server.await?
    }
}
