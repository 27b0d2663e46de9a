//! The flags of eddy: those of etcd, and its own.

mod flag;
mod setters;
mod table;

use self::setters::{to_bool, to_path};
use super::TlsFiles;
use super::value::{ValueError, parse_list};

pub use self::flag::{Effect, Flag, Kind};
pub use self::table::FLAGS;

/// Looks a flag up by its name.
pub fn by_name(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// The keys of `client-transport-security` and `peer-transport-security` in the configuration file.
pub(crate) fn set_security(tls: &mut TlsFiles, key: &str, value: &str) -> Result<bool, ValueError> {
    match key {
        "cert-file" => to_path(&mut tls.cert_file, value)?,
        "key-file" => to_path(&mut tls.key_file, value)?,
        "client-cert-file" => to_path(&mut tls.client_cert_file, value)?,
        "client-key-file" => to_path(&mut tls.client_key_file, value)?,
        "client-cert-auth" => to_bool(&mut tls.client_cert_auth, value)?,
        "trusted-ca-file" => to_path(&mut tls.trusted_ca_file, value)?,
        "auto-tls" => to_bool(&mut tls.auto_tls, value)?,
        "allowed-cn" => tls.allowed_cns = parse_list(value),
        "allowed-hostname" => tls.allowed_hostnames = parse_list(value),
        "skip-client-san-verification" => to_bool(&mut tls.skip_client_san_verify, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}
