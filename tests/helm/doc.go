// Package helm tests the chart in deploy/helm: what Helm renders from several sets of values is decoded strictly into
// the types of the Kubernetes API, linted by Helm, and compared with the settings of the binary, which has to accept
// it.
package helm
