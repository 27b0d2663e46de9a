//! Concurrent changes of users and roles: what takes rights away wins.

use bytes::Bytes;

use crate::command::auth::ROOT;
use crate::store::auth::{AuthKey, AuthValue, EnabledValue, GrantValue, PermissionValue, RoleValue, UserValue};

/// What these values of one key, written apart from each other, are together. They are in the order in which they were
/// written. Tells the place of the one that stands, and the value, which may differ from all of them.
pub(super) fn merged(key: &AuthKey, values: &[&Bytes]) -> Option<(usize, Bytes)> {
    match key {
        AuthKey::Enabled => last(&read::<EnabledValue>(values), |value| value.enabled),
        AuthKey::User(name) => {
            let values: Vec<UserValue> = read(values);
            let life = values.iter().map(|value| value.life).max()?;
            // A delete beats all else. A password goes to the newest user of that name, never to one that comes after it.
            let weight = |value: &UserValue| (value.gone, value.life, value.no_password);
            let (place, mut stands) = heaviest(&values, weight)?;
            if stands.gone && name == ROOT {
                // It may have to stay while authentication is enabled, and then with its last password.
                if let Some((_, newest)) = heaviest(&values, |value| (value.life, !value.gone)) {
                    (stands.password, stands.no_password) = (newest.password, newest.no_password);
                }
            }
            Some((place, UserValue { life, ..stands }.write()))
        }
        AuthKey::Role(_) => {
            let values: Vec<RoleValue> = read(values);
            let life = values.iter().map(|value| value.life).max()?;
            let (place, stands) = heaviest(&values, |value| (value.gone, value.life))?;
            Some((place, RoleValue { life, ..stands }.write()))
        }
        AuthKey::Grant { .. } => {
            last(&read::<GrantValue>(values), |value| (value.revoked, value.user_life, value.role_life))
        }
        AuthKey::Permission { .. } => {
            let values: Vec<PermissionValue> = read(values);
            let is_revoked = |value: &PermissionValue| value.right().is_none();
            let (place, mut stands) = heaviest(&values, |value| (is_revoked(value), value.role_life))?;
            for value in values.iter().filter(|value| value.role_life == stands.role_life) {
                stands.reads &= value.reads;
                stands.writes &= value.writes;
            }
            Some((place, stands.write()))
        }
    }
}

fn read<T: AuthValue>(values: &[&Bytes]) -> Vec<T> {
    values.iter().map(|value| T::read(value)).collect()
}

/// The heaviest of several values, of equal ones the last.
fn heaviest<T: Clone, W: Ord>(values: &[T], weight: impl Fn(&T) -> W) -> Option<(usize, T)> {
    let (place, value) = values.iter().enumerate().max_by_key(|(place, value)| (weight(value), *place))?;
    Some((place, value.clone()))
}

fn last<T: AuthValue + Clone, W: Ord>(values: &[T], weight: impl Fn(&T) -> W) -> Option<(usize, Bytes)> {
    heaviest(values, weight).map(|(place, value)| (place, value.write()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::auth::{PermissionRange, Right};

    /// What these are together, in whatever order they were written but for what the last one decides.
    fn of<T: AuthValue + PartialEq + Clone>(key: &AuthKey, values: &[T]) -> T {
        let bytes: Vec<Bytes> = values.iter().map(AuthValue::write).collect();
        T::read(&merged(key, &bytes.iter().collect::<Vec<_>>()).unwrap().1)
    }

    #[test]
    fn a_delete_beats_all_that_was_done_apart_from_it() {
        let key = AuthKey::User("u".into());
        let user = |life, gone, password: &'static str| UserValue {
            life,
            gone,
            password: password.into(),
            no_password: false,
        };
        let (gone, changed, again) = (user(1, true, ""), user(1, false, "p"), user(2, false, "q"));
        for values in [[gone.clone(), changed.clone()], [changed.clone(), gone.clone()]] {
            assert_eq!(of(&key, &values), gone);
        }
        // The next user of that name is not the one who was added meanwhile.
        assert_eq!(of(&key, &[again.clone(), gone.clone()]), user(2, true, ""));
        assert_eq!(of(&key, &[again.clone(), changed.clone()]), again, "no password of the user before");
        assert_eq!(of(&key, &[user(1, false, "p"), user(1, false, "q")]), user(1, false, "q"), "the later one");
        let none = UserValue { no_password: true, ..user(1, false, "") };
        assert_eq!(of(&key, &[none.clone(), changed]), none);
    }

    #[test]
    fn a_revoke_beats_a_grant_and_enabling_beats_disabling() {
        let key = AuthKey::Grant { user: "u".into(), role: "r".into() };
        let grant = |user_life, revoked| GrantValue { user_life, role_life: 1, revoked };
        assert_eq!(of(&key, &[grant(1, true), grant(2, false)]), grant(1, true));
        assert_eq!(of(&key, &[grant(2, false), grant(1, false)]), grant(2, false));
        let enabled = |enabled| EnabledValue { enabled };
        assert_eq!(of(&AuthKey::Enabled, &[enabled(true), enabled(false)]), enabled(true));
    }

    #[test]
    fn of_two_permissions_the_smaller_one_stays() {
        let range = PermissionRange { key: "a".into(), range_end: "".into() };
        let key = AuthKey::Permission { role: "r".into(), range };
        let may = |life, right| PermissionValue::new(life, right);
        let both = |one, other| of(&key, &[may(1, one), may(1, other)]).right();
        assert_eq!(both(Some(Right::Read), Some(Right::ReadWrite)), Some(Right::Read));
        assert_eq!(both(Some(Right::ReadWrite), Some(Right::Write)), Some(Right::Write));
        assert_eq!(both(Some(Right::Read), Some(Right::Write)), None);
        assert_eq!(both(None, Some(Right::ReadWrite)), None);
        assert_eq!(of(&key, &[may(2, Some(Right::Read)), may(1, Some(Right::Write))]), may(2, Some(Right::Read)));
        assert_eq!(of(&key, &[may(2, Some(Right::Read)), may(1, None)]).right(), None);
    }

    /// Root that was deleted keeps its password, in case that authentication was enabled meanwhile.
    #[test]
    fn root_keeps_its_last_password() {
        let key = AuthKey::User(ROOT.into());
        let user =
            |gone, password: &'static str| UserValue { life: 1, gone, password: password.into(), no_password: false };
        assert_eq!(of(&key, &[user(false, "new"), user(true, "old")]), user(true, "new"));
    }
}
