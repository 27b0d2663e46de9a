package main

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// together are fields of one struct that are only right together, although server-side apply has them apart: all of them come from
// the side that edited any of them last, or as the last word says. `earliest`: from the side that began to delete the object first.
// `bits`: what is set on either side is set, where both mean the same range.
var together = []struct{ goType, fields, how string }{
	{"meta.ObjectMeta", "deletionGracePeriodSeconds,deletionTimestamp", " earliest"},
	{"core.RangeAllocation", "data,range", " bits"},
	// What a node says of its addresses; what a controller counted at one moment, and of which generation.
	{"core.PodStatus", "hostIP,hostIPs,podIP,podIPs", ""},
	{"batch.JobStatus", "active,completedIndexes,failed,failedIndexes,ready,succeeded,terminating,uncountedTerminatedPods", ""},
	{"*.DeploymentStatus", "availableReplicas,observedGeneration,readyReplicas,replicas,terminatingReplicas,unavailableReplicas,updatedReplicas", ""},
	{"*.ReplicaSetStatus", "availableReplicas,fullyLabeledReplicas,observedGeneration,readyReplicas,replicas,terminatingReplicas", ""},
	{"core.ReplicationControllerStatus", "availableReplicas,fullyLabeledReplicas,observedGeneration,readyReplicas,replicas", ""},
	{"apps.StatefulSetStatus", "availableReplicas,currentReplicas,currentRevision,observedGeneration,readyReplicas,replicas,updateRevision,updatedReplicas", ""},
	{"*.DaemonSetStatus", "currentNumberScheduled,desiredNumberScheduled,numberAvailable,numberMisscheduled,numberReady,numberUnavailable,observedGeneration,updatedNumberScheduled", ""},
	{"policy.PodDisruptionBudgetStatus", "currentHealthy,desiredHealthy,disruptionsAllowed,expectedPods,observedGeneration", ""},
	{"autoscaling.HorizontalPodAutoscalerStatus", "currentReplicas,desiredReplicas,lastScaleTime,observedGeneration", ""},
	// A type, and what it takes.
	{"core.ServiceSpec", "allocateLoadBalancerNodePorts,clusterIP,clusterIPs,externalName,externalTrafficPolicy,healthCheckNodePort,ipFamilies,ipFamilyPolicy,loadBalancerClass,type", ""},
	{"core.ServiceSpec", "sessionAffinity,sessionAffinityConfig", ""},
	{"core.SeccompProfile", "localhostProfile,type", ""},
	{"core.AppArmorProfile", "localhostProfile,type", ""},
	// One or the other.
	{"core.ProbeHandler", "exec,grpc,httpGet,tcpSocket", ""},
	{"core.LifecycleHandler", "exec,httpGet,sleep,tcpSocket", ""},
	{"policy.PodDisruptionBudgetSpec", "maxUnavailable,minAvailable", ""},
	{"admissionregistration.WebhookClientConfig", "service,url", ""},
	{"apiextensions.WebhookClientConfig", "service,url", ""},
	{"*.IngressBackend", "resource,service,serviceName,servicePort", ""},
}

// unused are the rows that no type has met yet: one that stays is a mistake.
var unused = func() map[int]bool {
	all := map[int]bool{}
	for at := range together {
		all[at] = true
	}
	return all
}()

// ofTogether are the lines for a type. A version of it that has less than two of the fields needs none.
func ofTogether(goType reflect.Type) (lines []string) {
	parts := strings.Split(goType.PkgPath(), "/")
	name := goType.Name()
	for at, row := range together {
		if row.goType != parts[len(parts)-2]+"."+name && row.goType != "*."+name {
			continue
		}
		var there []string
		for _, field := range fields(goType) {
			if slices.Contains(strings.Split(row.fields, ","), field.json) {
				there = append(there, field.json)
			}
		}
		if slices.Sort(there); len(there) > 1 {
			lines = append(lines, fmt.Sprintf("together %s%s", strings.Join(there, ","), row.how))
			delete(unused, at)
		}
	}
	return lines
}
