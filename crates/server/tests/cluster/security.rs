//! Peers without a valid certificate get nothing.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::cluster::{Cluster, PATIENCE, Setup, eventually};

fn write(dir: &Path, name: &str, text: &str) -> Result<String> {
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    Ok(path.to_str().context("a path in UTF-8")?.to_owned())
}

/// A CA with a certificate for loopback; paths of CA, certificate and key.
fn certificates(dir: &Path) -> Result<[String; 3]> {
    certificates_for(dir, "127.0.0.1")
}

/// A CA with a certificate for a host; paths of CA, certificate and key.
fn certificates_for(dir: &Path, host: &str) -> Result<[String; 3]> {
    std::fs::create_dir_all(dir)?;
    let ca = authority()?;
    certificate(dir, &ca, host)
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "peers");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

/// A certificate of that CA for a host; paths of CA, certificate and key.
fn certificate(dir: &Path, ca: &CertifiedIssuer<'static, KeyPair>, host: &str) -> Result<[String; 3]> {
    let mut params = CertificateParams::new(vec![host.to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, "peer");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, ca)?;
    Ok([
        write(dir, "ca.pem", &ca.pem())?,
        write(dir, "peer.pem", &cert.pem())?,
        write(dir, "peer-key.pem", &key.serialize_pem())?,
    ])
}

/// A member of the cluster without a good certificate gets nothing, whether it dials or is dialled. Each reason is in
/// the log once, although the member goes on trying.
#[tokio::test]
async fn a_member_without_a_valid_certificate_gets_nothing_and_the_log_says_why_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let place = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(&path).map(|()| path)
    };
    let ca = authority()?;
    let [trusted, cert, key] = certificate(&place("right")?, &ca, "127.0.0.1")?;
    let [_, other_cert, other_key] = certificates(&place("other-ca")?)?;
    let [_, name_cert, name_key] = certificate(&place("other-name")?, &ca, "peer.invalid")?;
    let [_, ip_cert, ip_key] = certificate(&place("other-address")?, &ca, "192.0.2.1")?;
    for (what, bad_cert, bad_key) in [
        ("another CA", other_cert, other_key),
        ("another name", name_cert, name_key),
        ("another address", ip_cert, ip_key),
    ] {
        // Of three members some are dialled by the one with the bad certificate and some dial it.
        let flags = |place: usize| {
            let (cert, key) = if place == 0 { (&bad_cert, &bad_key) } else { (&cert, &key) };
            vec![
                format!("--peer-cert-file={cert}"),
                format!("--peer-key-file={key}"),
                format!("--peer-trusted-ca-file={trusted}"),
                "--peer-client-cert-auth".to_owned(),
                "--join-timeout=300ms".to_owned(),
            ]
        };
        let cluster = Cluster::with(3, Setup { peer_tls: true, flags: Some(&flags), ..Setup::default() }).await?;
        let (bad, good) = (&cluster.replicas[0], &cluster.replicas[1..]);
        good[0].put("a", "1").await?;
        bad.put("b", "2").await?;
        good[1].shows("a", Some("1")).await?;
        for replica in good {
            let id = bad.status().await?.member_id;
            eventually("it was refused again and again", || async {
                let handshakes = replica.metric("eddy_tls_handshake_failures_total").await?;
                let sent = replica.metric(&format!("etcd_network_peer_sent_failures_total{{To=\"{id:x}\"}}")).await?;
                ensure!(handshakes >= 4 || sent >= 4, "{what}: {handshakes} and {sent} times");
                Ok(())
            })
            .await?;
            let rejected = replica.logged(&["rejected connection on peer endpoint"]);
            let failed = replica.logged(&["no connection to the peer", &format!("{id:x}")]);
            ensure!(rejected + failed > 0, "{what}: nothing says why: {}", replica.server.log());
            // It is dialled and dials, and before it had opened nobody answered there.
            ensure!(rejected <= 2 && failed <= 2, "{what}: {rejected} and {failed} lines: {}", replica.server.log());
            ensure!(replica.get("b").await?.is_none(), "{what}");
        }
        ensure!(bad.get("a").await?.is_none(), "{what}");
        ensure!(bad.status().await?.peers.iter().all(|peer| !peer.connected), "{what}");
        good[1].put("c", "3").await?;
        good[0].shows("c", Some("3")).await?;
    }
    Ok(())
}

/// Behind address translation the names in certificates are no use; then the operator says so.
#[tokio::test]
async fn the_host_in_a_client_certificate_is_not_looked_at_where_that_is_wanted() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let ca = authority()?;
    let place = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(&path).map(|()| path)
    };
    let [trusted, cert, key] = certificate(&place("right")?, &ca, "127.0.0.1")?;
    let [_, far_cert, far_key] = certificate(&place("far")?, &ca, "192.0.2.1")?;
    let flags = |_: usize| {
        vec![
            format!("--peer-cert-file={cert}"),
            format!("--peer-key-file={key}"),
            format!("--peer-client-cert-file={far_cert}"),
            format!("--peer-client-key-file={far_key}"),
            format!("--peer-trusted-ca-file={trusted}"),
            "--peer-client-cert-auth".to_owned(),
            "--peer-skip-client-san-verification".to_owned(),
        ]
    };
    let cluster = Cluster::with(2, Setup { peer_tls: true, flags: Some(&flags), ..Setup::default() }).await?;
    cluster.replicas[0].put("a", "1").await?;
    cluster.replicas[1].shows("a", Some("1")).await?;
    cluster.settled().await
}

/// A certificate of the right CA is not enough where names are given.
#[tokio::test]
async fn a_peer_whose_certificate_has_another_name_gets_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [ca, cert, key] = certificates(dir.path())?;
    for (allowed, is_right) in [
        ("--peer-cert-allowed-cn=someone,peer", true),
        ("--peer-cert-allowed-cn=someone", false),
        ("--peer-cert-allowed-hostname=127.0.0.1", true),
        ("--peer-cert-allowed-hostname=peer.example", false),
    ] {
        let flags = |_: usize| {
            vec![
                format!("--peer-cert-file={cert}"),
                format!("--peer-key-file={key}"),
                format!("--peer-trusted-ca-file={ca}"),
                "--peer-client-cert-auth".to_owned(),
                allowed.to_owned(),
                "--join-timeout=300ms".to_owned(),
            ]
        };
        let cluster = Cluster::with(2, Setup { peer_tls: true, flags: Some(&flags), ..Setup::default() }).await?;
        cluster.replicas[0].put("a", "1").await?;
        if is_right {
            cluster.replicas[1].shows("a", Some("1")).await?;
            cluster.settled().await?;
            continue;
        }
        cluster.replicas[0].logs("rejected connection on peer endpoint").await?;
        ensure!(cluster.replicas[1].get("a").await?.is_none(), "{allowed}");
        ensure!(cluster.replicas[0].status().await?.peers.iter().all(|peer| !peer.connected), "{allowed}");
    }
    Ok(())
}

#[tokio::test]
async fn peers_speak_mutual_tls_and_refuse_whoever_has_no_certificate() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [ca, cert, key] = certificates(dir.path())?;
    let flags = |_: usize| {
        vec![
            format!("--peer-cert-file={cert}"),
            format!("--peer-key-file={key}"),
            format!("--peer-trusted-ca-file={ca}"),
            "--peer-client-cert-auth".to_owned(),
        ]
    };
    let cluster = Cluster::with(2, Setup { peer_tls: true, flags: Some(&flags), ..Setup::default() }).await?;
    cluster.replicas[0].put("a", "1").await?;
    cluster.replicas[1].shows("a", Some("1")).await?;

    // Trusts the peer, and has nothing to show.
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&ca)?)?;
    let client = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let address = ("127.0.0.1", cluster.replicas[0].ports[1]);
    let name = ServerName::try_from("127.0.0.1")?;
    let answer = async {
        let mut stream = TlsConnector::from(Arc::new(client)).connect(name, TcpStream::connect(address).await?).await?;
        stream.write_all(b"GET /members HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(PATIENCE, answer).await?;
    ensure!(answer.as_ref().is_ok_and(Vec::is_empty) || answer.is_err(), "{answer:?}");
    cluster.replicas[0].logs("rejected connection on peer endpoint").await?;

    // No TLS at all: closed without a word.
    let mut plain = TcpStream::connect(address).await?;
    plain.write_all(b"GET /members HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    let mut answer = Vec::new();
    let _reset = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut answer)).await?;
    ensure!(answer.is_empty(), "{answer:?}");
    cluster.settled().await
}
