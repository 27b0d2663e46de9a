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

use crate::cluster::{Cluster, PATIENCE, Setup};

fn write(dir: &Path, name: &str, text: &str) -> Result<String> {
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    Ok(path.to_str().context("a path in UTF-8")?.to_owned())
}

/// A CA with a certificate for loopback; paths of CA, certificate and key.
fn certificates(dir: &Path) -> Result<[String; 3]> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "peers");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
    params.distinguished_name.push(DnType::CommonName, "peer");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, &ca)?;
    Ok([
        write(dir, "ca.pem", &ca.pem())?,
        write(dir, "peer.pem", &cert.pem())?,
        write(dir, "peer-key.pem", &key.serialize_pem())?,
    ])
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
