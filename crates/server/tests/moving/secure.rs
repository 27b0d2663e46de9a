//! Sides that take TLS only, with client certificates and users.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use super::mover::Mover;
use super::support::{self, Server};
use super::tools::Tools;
use super::{eddy, equal, load, writer};

/// A CA of its own, and a certificate of it for loopback.
struct Pki {
    ca: String,
    cert: String,
    key: String,
}

impl Pki {
    fn make(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "clients");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        // No user has this name: it is the password that counts.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &ca)?;
        let write = |name: &str, text: String| -> Result<String> {
            let path = dir.join(name);
            std::fs::write(&path, text)?;
            Ok(path.to_str().context("a path in UTF-8")?.to_owned())
        };
        Ok(Self {
            ca: write("ca.pem", ca.pem())?,
            cert: write("cert.pem", cert.pem())?,
            key: write("key.pem", key.serialize_pem())?,
        })
    }

    /// What a client shows, with flags that begin so.
    fn shown<'a>(&'a self, flags: &'a [String; 3]) -> Vec<&'a str> {
        let values = [&self.ca, &self.cert, &self.key];
        flags.iter().zip(values).flat_map(|(flag, value)| [flag.as_str(), value.as_str()]).collect()
    }
}

fn flags(prefix: &str) -> [String; 3] {
    ["cacert", "cert", "key"].map(|name| format!("--{prefix}{name}"))
}

/// A server that others reach with TLS and a certificate only, and this test without, at another port. Its URL for others.
async fn start(binary: &Path, data_dir: &Path, pki: &Pki, more: &[&str]) -> Result<(Server, String)> {
    let (ports, secure) = (support::free_ports()?, support::free_ports()?[0]);
    let url = format!("https://127.0.0.1:{secure}");
    let listen = format!("http://127.0.0.1:{},{url}", ports[0]);
    let own = ["--listen-client-urls", &listen, "--cert-file", &pki.cert, "--key-file", &pki.key];
    let own = [&own[..], &["--trusted-ca-file", &pki.ca, "--client-cert-auth"], more].concat();
    let mut server = Server::spawn_on(binary, data_dir, ports, &own)?;
    server.ready().await?;
    Ok((server, url))
}

fn with_users(tools: &Tools, server: &Server) -> Result<()> {
    tools.control(server, &["user", "add", "root:secret"])?;
    tools.control(server, &["user", "grant-role", "root", "root"])?;
    tools.control(server, &["auth", "enable"]).map(drop)
}

/// In from an etcd that asks for a certificate and a password, and out into another one that trusts other certificates.
#[tokio::test(flavor = "multi_thread")]
async fn a_move_through_tls_needs_the_right_certificates() -> Result<()> {
    let (tools, folder) = (Tools::find()?, tempfile::tempdir()?);
    let dir = |name: &str| folder.path().join(name);
    let (pki, other) = (Pki::make(&dir("pki"))?, Pki::make(&dir("other"))?);
    let (etcd, url) = start(&tools.etcd(), &dir("etcd"), &pki, &[]).await?;
    writer::fill(&etcd, 500).await?;
    with_users(&tools, &etcd)?;
    let names = flags("");
    let user = ["--user", "root:secret"];
    // Without a certificate, with one of another authority, and towards a server of an unknown one.
    let mixed = [names[0].as_str(), &pki.ca, &names[1], &other.cert, &names[2], &other.key];
    for (place, bad) in [&[names[0].as_str(), &pki.ca][..], &mixed, &other.shown(&names)].into_iter().enumerate() {
        let said = Mover::import(&url, &dir(&format!("bad{place}")), &[bad, &user].concat())?.fails().await?;
        ensure!(said.contains("ertificate"), "{said}");
    }
    let data_dir = dir("eddy");
    let mut import = Mover::import(&url, &data_dir, &[&pki.shown(&names)[..], &user, &["--without-users"]].concat())?;
    import.says("equal at revision").await?;
    tools.control(&etcd, &["--user", "root:secret", "put", "/later", "x"])?;
    import.stop().await?;
    let (moved, url) = start(&eddy(), &data_dir, &pki, &[]).await?;
    ensure!(load::get(&moved, "/later").await?.value == "x");
    // Each side has certificates of its own.
    let (file, restored) = (dir("out.db"), dir("out"));
    tools.save(&moved, &file)?;
    tools.restore(&file, &restored)?;
    let (out, to) = start(&tools.etcd(), &restored, &other, &["--max-txn-ops", "10000"]).await?;
    let (log, to_names) = (dir("export.log"), flags("to-"));
    let begin = ["export", "--endpoints", &url, "--to", &to];
    let swapped = [&begin[..], &pki.shown(&names), &pki.shown(&to_names)].concat();
    let said = Mover::start(&swapped, &log)?.fails().await?;
    ensure!(said.contains("ertificate"), "{said}");
    let mut export = Mover::start(&[&begin[..], &pki.shown(&names), &other.shown(&to_names)].concat(), &log)?;
    export.says("equal at revision").await?;
    load::put(&moved, "/last", "y").await?;
    export.stop().await?;
    ensure!(load::get(&out, "/last").await?.value == "y");
    equal(&moved, &out, load::get(&moved, "/later").await?.mod_revision).await
}
