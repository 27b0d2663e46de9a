//! How the text of a value reaches its place in the [`Config`].

use std::path::{Path, PathBuf};

use eddy_crdt::merge;

use crate::config::Config;
use crate::config::policy::MergePolicy;
use crate::config::url::Url;
use crate::config::value::{ValueError, parse_bool, parse_duration, parse_int, parse_uint};

pub(super) fn to_bool(target: &mut bool, value: &str) -> Result<(), ValueError> {
    *target = parse_bool(value)?;
    Ok(())
}

pub(super) fn to_path(target: &mut PathBuf, value: &str) -> Result<(), ValueError> {
    *target = PathBuf::from(value);
    Ok(())
}

pub(super) fn urls(target: &mut Vec<Url>, value: &str) -> Result<(), ValueError> {
    // An empty list keeps the default, as in etcd.
    if !value.is_empty() {
        *target = Url::parse_list(value).map_err(|err| ValueError::new(err.to_string()))?;
    }
    Ok(())
}

pub(super) fn to_text(target: &mut String, value: &str) -> Result<(), ValueError> {
    value.clone_into(target);
    Ok(())
}

pub(super) fn to_u64(target: &mut u64, value: &str) -> Result<(), ValueError> {
    *target = parse_uint(value, u64::MAX)?;
    Ok(())
}

pub(super) fn to_i64(target: &mut i64, value: &str) -> Result<(), ValueError> {
    *target = parse_int(value)?;
    Ok(())
}

pub(super) fn to_duration(target: &mut std::time::Duration, value: &str) -> Result<(), ValueError> {
    *target = parse_duration(value)?;
    Ok(())
}

pub(super) fn one_of(target: &mut String, value: &str, allowed: &[&str]) -> Result<(), ValueError> {
    if !allowed.contains(&value) {
        return Err(ValueError::new(format!("expected one of {}", allowed.join(", "))));
    }
    to_text(target, value)
}

// Values that are parsed, so that a typo is found, and then dropped.
pub(super) fn drop_text(_: &mut Config, _: &str) -> Result<(), ValueError> {
    Ok(())
}

pub(super) fn drop_bool(_: &mut Config, value: &str) -> Result<(), ValueError> {
    parse_bool(value).map(drop)
}

pub(super) fn drop_uint(_: &mut Config, value: &str) -> Result<(), ValueError> {
    parse_uint(value, u64::MAX).map(drop)
}

pub(super) fn drop_int(_: &mut Config, value: &str) -> Result<(), ValueError> {
    parse_int(value).map(drop)
}

pub(super) fn drop_duration(_: &mut Config, value: &str) -> Result<(), ValueError> {
    parse_duration(value).map(drop)
}

pub(super) fn v2_deprecation(_: &mut Config, value: &str) -> Result<(), ValueError> {
    one_of(&mut String::new(), value, &["write-only", "write-only-skip-check", "write-only-drop-data", "gone"])
}

pub(super) fn cors(config: &mut Config, value: &str) -> Result<(), ValueError> {
    if value != "*" {
        let urls = Url::parse_list(value).map_err(|err| ValueError::new(err.to_string()))?;
        config.cors = urls.iter().map(Url::to_string).collect();
    } else if !config.cors.iter().any(|origin| origin == "*") {
        config.cors.push(value.to_owned());
    }
    Ok(())
}

pub(super) fn streams(config: &mut Config, value: &str) -> Result<(), ValueError> {
    let number = parse_uint(value, u64::from(u32::MAX))?;
    config.max_concurrent_streams = u32::try_from(number).map_err(|_| ValueError::new("value out of range"))?;
    Ok(())
}

pub(super) fn kubernetes_prefix(config: &mut Config, value: &str) -> Result<(), ValueError> {
    config.kubernetes_prefix = merge::prefix(value).map_err(|err| ValueError::new(err.to_string()))?;
    Ok(())
}

pub(super) fn merge_policy(config: &mut Config, value: &str) -> Result<(), ValueError> {
    let policy = MergePolicy::read(Path::new(value)).map_err(|err| ValueError::new(err.to_string()))?;
    (config.counters, config.atomic) = (policy.counters, policy.atomic);
    Ok(())
}

pub(super) fn counters(config: &mut Config, value: &str) -> Result<(), ValueError> {
    config.counters = merge::counters(value).map_err(|err| ValueError::new(err.to_string()))?;
    Ok(())
}
