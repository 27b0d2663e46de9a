//! What happened in a backup since its last compaction, revision by revision.

use eddy_proto::mvccpb::{Event, KeyValue, event::EventType};

use super::read::BadDatabase;
use super::restore::{Backup, RestoreError, bucket, content, version};
use super::schema;

impl Backup {
    /// Shows each revision behind `after`, with its changes in their order.
    ///
    /// # Errors
    /// When the backup is damaged or lacks a revision, or `show` refuses.
    pub fn each_after<E: From<RestoreError>>(
        &self,
        after: i64,
        mut show: impl FnMut(i64, Vec<Event>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut database, buckets) = self.database().map_err(RestoreError::from)?;
        let keys = bucket(&buckets, schema::KEY)?;
        let (mut revision, mut events) = (after, vec![]);
        let each = database.each(keys, |key, value| {
            let (place, kv) = version(key, value)?;
            if place.main <= after {
                return Ok(());
            }
            if place.main != revision {
                if !events.is_empty() {
                    show(revision, std::mem::take(&mut events)).map_err(Shown::Refused)?;
                }
                if place.main != revision + 1 {
                    return Err(content(schema::KEY, "a revision is missing").into());
                }
                revision = place.main;
            }
            events.push(if place.tombstone {
                let kv = KeyValue { key: kv.key, mod_revision: place.main, ..KeyValue::default() };
                Event { r#type: EventType::Delete.into(), kv: Some(kv), prev_kv: None }
            } else {
                Event { r#type: EventType::Put.into(), kv: Some(kv), prev_kv: None }
            });
            Ok::<(), Shown<E>>(())
        });
        match each {
            Ok(()) if events.is_empty() => Ok(()),
            Ok(()) => show(revision, events),
            Err(Shown::Bad(error)) => Err(error.into()),
            Err(Shown::Refused(error)) => Err(error),
        }
    }
}

/// Why reading ends early.
enum Shown<E> {
    Bad(RestoreError),
    Refused(E),
}

impl<E> From<BadDatabase> for Shown<E> {
    fn from(error: BadDatabase) -> Self {
        Self::Bad(error.into())
    }
}

impl<E> From<RestoreError> for Shown<E> {
    fn from(error: RestoreError) -> Self {
        Self::Bad(error)
    }
}
