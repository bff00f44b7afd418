-- How busy the machine of a node is. Older nodes write neither.
-- if-missing: node_vitals.cpu_utilisation
ALTER TABLE node_vitals ADD COLUMN cpu_utilisation REAL;

-- if-missing: node_vitals.gpu_utilisation
ALTER TABLE node_vitals ADD COLUMN gpu_utilisation REAL;
