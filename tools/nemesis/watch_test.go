package main

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func kv(value string, create, mod, version int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte("k"), Value: []byte(value), CreateRevision: create, ModRevision: mod, Version: version}
}

func put(now, before *mvccpb.KeyValue) *clientv3.Event {
	return &clientv3.Event{Type: clientv3.EventTypePut, Kv: now, PrevKv: before}
}

func TestAWatchWithoutGapsIsTaken(t *testing.T) {
	first, second := kv("a", 2, 2, 1), kv("b", 2, 4, 2)
	gone := &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: []byte("k"), ModRevision: 5}, PrevKv: second}
	s := Segment{From: 1, To: 1, Keys: map[string][]Event{}}
	s.take(clientv3.WatchResponse{Events: []*clientv3.Event{put(first, nil)}})
	s.take(clientv3.WatchResponse{Events: []*clientv3.Event{put(second, first), gone}})
	s.take(clientv3.WatchResponse{Events: []*clientv3.Event{put(kv("c", 7, 7, 1), nil)}})
	if len(s.Wrong) > 0 || s.To != 7 {
		t.Fatal(s.To, s.Wrong)
	}
}

func TestAGapInAWatchIsFound(t *testing.T) {
	first, second, third := kv("a", 2, 2, 1), kv("b", 2, 4, 2), kv("c", 2, 6, 3)
	for name, events := range map[string][]*clientv3.Event{
		"one is missing":            {put(first, nil), put(third, second)},
		"the first is missing":      {put(second, first)},
		"a delete is missing":       {put(first, nil), put(kv("c", 7, 7, 1), nil)},
		"twice":                     {put(first, nil), put(first, nil)},
		"out of order":              {put(first, nil), put(third, second), put(second, first)},
		"created in another life":   {put(first, nil), put(kv("b", 3, 4, 2), first)},
		"deleted though never told": {{Type: clientv3.EventTypeDelete, Kv: kv("", 0, 5, 0)}},
	} {
		s := Segment{From: 1, To: 1, Keys: map[string][]Event{}}
		for _, event := range events {
			s.take(clientv3.WatchResponse{Events: []*clientv3.Event{event}})
		}
		if len(s.Wrong) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}
