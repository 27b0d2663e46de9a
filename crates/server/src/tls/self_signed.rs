//! The certificate of `--auto-tls`, made once and kept in the data dir.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::error::TlsError;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the paths of certificate and key in `dir`. Makes both if one is missing.
pub(super) fn ensure(dir: &Path, hosts: &[&str], years: u64) -> Result<(PathBuf, PathBuf), TlsError> {
    let (cert_file, key_file) = (dir.join("cert.pem"), dir.join("key.pem"));
    if cert_file.exists() && key_file.exists() {
        return Ok((cert_file, key_file));
    }
    let years = u32::try_from(years).ok().filter(|years| (1..=1000).contains(years));
    let years =
        years.ok_or_else(|| TlsError::Generate("--self-signed-cert-validity must be 1 to 1000 years".into()))?;
    let (cert, key) = generate(hosts, years).map_err(|err| TlsError::Generate(err.to_string()))?;
    let unwritable = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Read { path, source }
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unwritable(dir))?;
    write(&cert_file, 0o644, &cert).map_err(unwritable(&cert_file))?;
    write(&key_file, 0o600, &key).map_err(unwritable(&key_file))?;
    tracing::warn!("cert-file" = %cert_file.display(), years, "automatically generate certificates");
    Ok((cert_file, key_file))
}

fn write(path: &Path, mode: u32, text: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn generate(hosts: &[&str], years: u32) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::default();
    for host in hosts.iter().filter(|host| !host.is_empty()) {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => SanType::DnsName((*host).try_into()?),
        });
    }
    params.subject_alt_names.dedup();
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "eddy");
    params.distinguished_name = name;
    let now = SystemTime::now();
    params.not_before = now.into();
    params.not_after = (now + YEAR * years).into();
    // As etcd's: its own CA, so that a client can be given this very file to trust.
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let cert = params.self_signed(&key)?;
    Ok((cert.pem(), key.serialize_pem()))
}
