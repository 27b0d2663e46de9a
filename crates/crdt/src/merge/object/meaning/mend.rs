//! Puts right what versions do not mean together.

use crate::merge::version::Version;

use super::super::Object;
use super::super::document::DocumentError;
use super::super::json::Json;
use super::super::path::Path;
use super::super::replay::Replay;
use super::super::resolve::Written;
use super::super::shared::join;
use super::place::{Place, is_true, list, text};
use super::refused;
use super::watched::Mended;

/// The versions that are replayed.
type Versions<'a, 'b> = [&'a (&'a Version, &'b Object)];

impl Replay<'_> {
    /// Whether a leaf can contradict others.
    pub fn is_watched(&self, key: &str) -> bool {
        let Some((path, _)) = self.leaves.get(key) else { return false };
        // Binding a pod has a rule of its own.
        !(self.schema.is_pod() && path.is(&["spec", "nodeName"]))
            && self.watched.iter().any(|place| path.lies_in(place) || place.lies_in(path))
    }

    /// Puts right what these heads do not mean together. `rest` is what the leaves say where they come together, less what all
    /// versions share. Tells what is not as they say.
    ///
    /// # Errors
    /// When Automerge refuses.
    pub fn mend(
        &self,
        rest: &mut Json,
        heads: &[usize],
        versions: &Versions<'_, '_>,
    ) -> Result<Vec<Mended>, DocumentError> {
        let mut mended = vec![];
        if heads.len() < 2 || !self.is_delicate {
            return Ok(mended);
        }
        self.keep_one_controller(rest, heads, versions, &mut mended)?;
        let own = || heads.iter().map(|&at| &versions[at].1.json);
        if self.schema.is_crd() {
            self.keep_stored_versions(rest, own().collect(), &mut mended);
        }
        if self.schema.is_service() {
            self.take_ports_of_nodes(rest, own().collect(), &mut mended);
        }
        if let Some(counting) = &self.counting
            && counting.count(rest, heads, &self.past)
        {
            mended.push(Mended { path: counting.path().clone(), from: None });
        }
        let (api_version, kind) = self.schema.kind();
        // What comes from one side can be wrong beside the rest. Then all of the spec does.
        for is_last in [false, true] {
            let mut found = refused::check(api_version, kind, &self.full(rest));
            if !found.is_empty() {
                let known: Vec<_> = own().flat_map(|object| refused::check(api_version, kind, object)).collect();
                found.retain(|one| !known.contains(one));
            }
            for one in found {
                let unit = if is_last { vec![Place::of(&["spec"])] } else { one.unit };
                let from = self.last_editor(&unit, heads, versions);
                let theirs = self.assemble(&self.replayed[from].scalars);
                for place in unit {
                    place.put(rest, place.get(&theirs).cloned());
                    mended.push(Mended { path: place.path(), from: Some(from) });
                }
            }
        }
        Ok(mended)
    }

    fn full(&self, rest: &Json) -> Json {
        join(self.shared.clone(), rest.clone())
    }

    /// Whose the leaf at that path was that is mended, and when it was written.
    pub fn mended_leaf(
        &self,
        key: &str,
        mended: &[Mended],
        heads: &[usize],
        versions: &Versions<'_, '_>,
    ) -> Result<Written, DocumentError> {
        let path = self.leaves.get(key).map(|(path, _)| path);
        let from = path.and_then(|path| mended.iter().rfind(|one| one.holds(path))).and_then(|one| one.from);
        let written = |head: &usize| self.written(key, &[*head], versions);
        match from {
            Some(head) => written(&head),
            None => heads.iter().map(written).try_fold(None, |last: Written, next| Ok(last.max(next?))),
        }
    }

    /// The head that edited any of these last.
    fn last_editor(&self, unit: &[Place], heads: &[usize], versions: &Versions<'_, '_>) -> usize {
        let paths: Vec<Path> = unit.iter().map(Place::path).collect();
        let is_in = |key: &&String| {
            let path = self.leaves.get(*key).map(|(path, _)| path);
            path.is_some_and(|path| paths.iter().any(|place| path.lies_in(place)))
        };
        let keys: Vec<&String> = self.past.touched().filter(is_in).collect();
        let edited = |head: usize| -> Written {
            let standing = |key: &&String| {
                self.past.standing(key, &[head]).into_iter().map(|at| self.written_at(at, key, versions)).max()
            };
            keys.iter().filter_map(standing).max().flatten()
        };
        let last = heads.iter().copied().max_by_key(|&head| (edited(head), versions[head].0.order()));
        last.unwrap_or_default()
    }

    /// Of several controllers that own an object the first stays. The others come as if the API server had refused them, which
    /// it does: one that was added is gone, one that was an owner before is an owner.
    fn keep_one_controller(
        &self,
        rest: &mut Json,
        heads: &[usize],
        versions: &Versions<'_, '_>,
        mended: &mut Vec<Mended>,
    ) -> Result<(), DocumentError> {
        let controllers = |object: &Json| -> Vec<String> {
            let owners = object.get("metadata").map(|metadata| list(metadata, "ownerReferences")).unwrap_or_default();
            owners
                .iter()
                .filter(|owner| is_true(owner, "controller"))
                .map(|owner| text(owner, "uid").to_owned())
                .collect()
        };
        let all = controllers(rest);
        if all.len() < 2 || heads.iter().any(|&head| controllers(&versions[head].1.json).len() > 1) {
            return Ok(());
        }
        let mut claims: Vec<(Written, Written, Place)> = vec![];
        for uid in all {
            let place = Place::of(&["metadata", "ownerReferences"]).element("uid", &uid);
            let key = place.path().to_string();
            let claimed = self.written(&format!("{key}="), heads, versions)?;
            claims.push((claimed, self.written(&key, heads, versions)?, place));
        }
        let first = claims.iter().map(|(claimed, _, place)| (*claimed, place.path())).min();
        for (claimed, added, place) in claims {
            if first.as_ref().is_some_and(|(_, path)| *path == place.path()) {
                continue;
            }
            let mut owner = place.get(rest).cloned();
            match &mut owner {
                Some(Json::Map(fields)) if claimed != added => drop(fields.remove("controller")),
                _ => owner = None,
            }
            place.put(rest, owner);
            mended.push(Mended { path: place.path(), from: None });
        }
        Ok(())
    }

    /// A version in which any side may have stored objects is one, as long as the resource has it.
    fn keep_stored_versions(&self, rest: &mut Json, own: Vec<&Json>, mended: &mut Vec<Mended>) {
        let stored = Place::of(&["status", "storedVersions"]);
        let full = self.full(rest);
        let names = |object: &Json| match stored.get(object) {
            Some(Json::List(names)) => names.clone(),
            _ => vec![],
        };
        let served = full.get("spec").map(|spec| list(spec, "versions")).unwrap_or_default();
        let mut merged = names(&full);
        let mut missing: Vec<Json> = own.into_iter().flat_map(names).filter(|name| !merged.contains(name)).collect();
        missing.retain(|name| served.iter().any(|version| version.get("name") == Some(name)));
        missing.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        missing.dedup();
        if missing.is_empty() {
            return;
        }
        merged.extend(missing);
        stored.put(rest, Some(Json::List(merged)));
        mended.push(Mended { path: stored.path(), from: None });
    }

    /// A service that is no longer reached through nodes has no ports of theirs.
    fn take_ports_of_nodes(&self, rest: &mut Json, own: Vec<&Json>, mended: &mut Vec<Mended>) {
        let is_wrong = |object: &Json| {
            let Some(spec) = object.get("spec") else { return false };
            matches!(text(spec, "type"), "" | "ClusterIP" | "ExternalName")
                && list(spec, "ports").iter().any(|port| port.get("nodePort").is_some())
        };
        if !is_wrong(&self.full(rest)) || own.into_iter().any(is_wrong) {
            return;
        }
        let ports = Place::of(&["spec", "ports"]);
        let Some(Json::List(mut all)) = ports.get(rest).cloned() else { return };
        for port in &mut all {
            if let Json::Map(fields) = port {
                fields.remove("nodePort");
            }
        }
        ports.put(rest, Some(Json::List(all)));
        mended.push(Mended { path: ports.path(), from: None });
    }
}
